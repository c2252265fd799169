; A sublayer of a decoder as one function: the calls that a numerics mode makes one by one, in the same order.
; m: sizes and functions of the model, l: weights of the layer, s: inputs and room of the forward; all in words of 8 bytes.
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

; x + attention(norm(x)) into y, and the keys and values into the cache; with keys_only just these
define void @attention(ptr %m, ptr %l, ptr %s, ptr %x, ptr %y, i64 %index, i64 %keys_only) {
entry:
$words
  %heads_size = mul i64 %heads, %dim
  %turned_heads = add i64 %heads, %kv_heads
  %turned_size = mul i64 %turned_heads, %dim
  %kv_size = mul i64 %kv_heads, %dim
  %width = add i64 %turned_size, %kv_size
  call void %norm(ptr %x, ptr %attention_gain, ptr %normed, i64 %rows, i64 %hidden, i64 1, float %hidden_share, float %eps)
  call void @settle(ptr %normed, i64 %rows, i64 %hidden, i64 %short)
  call void @multiply(ptr %normed, ptr %qkv_code, ptr %qkv_weight, ptr %qkv_scale, ptr %qkv_bias, ptr %qkv, i64 %hidden, i64 %width, i64 %rows)
  call void @settle(ptr %qkv, i64 %rows, i64 %width, i64 %short)
  %plain = icmp eq ptr %qk_gain, null
  br i1 %plain, label %turn, label %row
row:
  %n = phi i64 [0, %entry], [%n1, %row]
  %no = mul i64 %n, %width
  %nq = getelementptr float, ptr %qkv, i64 %no
  call void %norm(ptr %nq, ptr %qk_gain, ptr %nq, i64 %turned_heads, i64 %dim, i64 %turned_heads, float %dim_share, float %eps)
  call void @settle(ptr %nq, i64 1, i64 %turned_size, i64 %short)
  %n1 = add i64 %n, 1
  %normed_all = icmp eq i64 %n1, %rows
  br i1 %normed_all, label %turn, label %row
turn:
  %qkv_keys = getelementptr float, ptr %qkv, i64 %heads_size
  %qkv_values = getelementptr float, ptr %qkv, i64 %turned_size
  call void %rotate(ptr %qkv_keys, ptr %cos, ptr %sin, ptr %turned, i64 %rows, i64 %kv_heads, i64 %dim, i64 %width)
  %before = mul i64 %index, %layer_size
  %layer_keys = getelementptr float, ptr %keys, i64 %before
  %layer_values = getelementptr float, ptr %values, i64 %before
  call void @write(ptr %turned, i64 %kv_size, ptr %layer_keys, ptr %write_rows, ptr %write_slots, i64 %rows, i64 %kv_heads, i64 %dim, i64 %row_size, i64 %head_size)
  call void @write(ptr %qkv_values, i64 %width, ptr %layer_values, ptr %write_rows, ptr %write_slots, i64 %rows, i64 %kv_heads, i64 %dim, i64 %row_size, i64 %head_size)
  %enough = icmp ne i64 %keys_only, 0
  br i1 %enough, label %out, label %see
see:
  call void %rotate(ptr %qkv, ptr %cos, ptr %sin, ptr %turned, i64 %rows, i64 %heads, i64 %dim, i64 %width)
  %first = mul i64 %first_row, %row_size
  %seen_keys = getelementptr float, ptr %layer_keys, i64 %first
  %seen_values = getelementptr float, ptr %layer_values, i64 %first
  call void %attend(ptr %turned, ptr %seen_keys, ptr %seen_values, ptr %attended, ptr %scores, ptr %plan, i64 %rows, i64 %kv_heads, i64 %group, i64 %row_size, i64 %head_size, float %scale)
  call void @multiply(ptr %attended, ptr %out_code, ptr %out_weight, ptr %out_scale, ptr %out_bias, ptr %y, i64 %heads_size, i64 %hidden, i64 %rows)
  call void @add(ptr %x, ptr %y, i64 %rows, i64 %hidden, i64 %short)
  br label %out
out:
  ret void
}

; x + down(gate(gate_up(norm(x)))) into y
define void @ffn(ptr %m, ptr %l, ptr %s, ptr %x, ptr %y) {
entry:
$words
  %both = mul i64 %inner, 2
  call void %norm(ptr %x, ptr %ffn_gain, ptr %normed, i64 %rows, i64 %hidden, i64 1, float %hidden_share, float %eps)
  call void @settle(ptr %normed, i64 %rows, i64 %hidden, i64 %short)
  call void @multiply(ptr %normed, ptr %gate_up_code, ptr %gate_up_weight, ptr %gate_up_scale, ptr %gate_up_bias, ptr %gate_up, i64 %hidden, i64 %both, i64 %rows)
  call void @settle(ptr %gate_up, i64 %rows, i64 %both, i64 %short)
  call void %gate(ptr %gate_up, ptr %gated, i64 %rows, i64 %inner)
  call void @settle(ptr %gated, i64 %rows, i64 %inner, i64 %short)
  call void @multiply(ptr %gated, ptr %down_code, ptr %down_weight, ptr %down_scale, ptr %down_bias, ptr %y, i64 %inner, i64 %hidden, i64 %rows)
  call void @add(ptr %x, ptr %y, i64 %rows, i64 %hidden, i64 %short)
  ret void
}

; blocks of rows, as panels.py cuts them
define internal void @multiply(ptr %x, ptr %code, ptr %weight, ptr %scale, ptr %bias, ptr %y, i64 %terms, i64 %columns, i64 %rows) noinline {
entry:
  br label %block
block:
  %start = phi i64 [0, %entry], [%next, %block]
  %left = sub i64 %rows, %start
  %few = icmp slt i64 %left, $block_rows
  %count = select i1 %few, i64 %left, i64 $block_rows
  %xo = mul i64 %start, %terms
  %xb = getelementptr float, ptr %x, i64 %xo
  %yo = mul i64 %start, %columns
  %yb = getelementptr float, ptr %y, i64 %yo
  call void %code(ptr %xb, ptr %weight, ptr %scale, ptr %bias, ptr %yb, i64 %terms, i64 %columns, i64 %columns, i64 %count)
  %next = add i64 %start, $block_rows
  %done = icmp sge i64 %next, %rows
  br i1 %done, label %out, label %block
out:
  ret void
}

; one layer's keys or values to their rows and columns of the cache
define internal void @write(ptr %x, i64 %to_row, ptr %store, ptr %write_rows, ptr %write_slots, i64 %rows, i64 %heads, i64 %dim, i64 %row_size, i64 %head_size) noinline {
entry:
  %bytes = mul i64 %dim, 4
  br label %token
token:
  %n = phi i64 [0, %entry], [%n1, %next]
  %rp = getelementptr i64, ptr %write_rows, i64 %n
  %row = load i64, ptr %rp
  %sp = getelementptr i64, ptr %write_slots, i64 %n
  %slot = load i64, ptr %sp
  %ro = mul i64 %row, %row_size
  %so = mul i64 %slot, %dim
  %base = add i64 %ro, %so
  %xo = mul i64 %n, %to_row
  br label %head
head:
  %h = phi i64 [0, %token], [%h1, %head]
  %ho = mul i64 %h, %dim
  %xi = add i64 %xo, %ho
  %from = getelementptr float, ptr %x, i64 %xi
  %hs = mul i64 %h, %head_size
  %to = add i64 %base, %hs
  %place = getelementptr float, ptr %store, i64 %to
  call void @llvm.memcpy.p0.p0.i64(ptr %place, ptr %from, i64 %bytes, i1 false)
  %h1 = add i64 %h, 1
  %heads_done = icmp eq i64 %h1, %heads
  br i1 %heads_done, label %next, label %head
next:
  %n1 = add i64 %n, 1
  %done = icmp eq i64 %n1, %rows
  br i1 %done, label %out, label %token
out:
  ret void
}

; y = x + y, after and before rounding to the model's dtype
define internal void @add(ptr %x, ptr %y, i64 %rows, i64 %width, i64 %short) noinline {
entry:
  call void @settle(ptr %y, i64 %rows, i64 %width, i64 %short)
  %all = mul i64 %rows, %width
  br label %step
step:
  %i = phi i64 [0, %entry], [%i1, %step]
  %left = sub i64 %all, %i
$mask_left
  %xp = getelementptr float, ptr %x, i64 %i
  %yp = getelementptr float, ptr %y, i64 %i
  %a = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %xp, i32 4, <16 x i1> %m, <16 x float> zeroinitializer)
  %b = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %yp, i32 4, <16 x i1> %m, <16 x float> zeroinitializer)
  %sum = fadd <16 x float> %a, %b
  call void @llvm.masked.store.v16f32.p0(<16 x float> %sum, ptr %yp, i32 4, <16 x i1> %m)
  %i1 = add nuw nsw i64 %i, 16
  %over = icmp sge i64 %i1, %all
  br i1 %over, label %end, label %step
end:
  call void @settle(ptr %y, i64 %rows, i64 %width, i64 %short)
  ret void
}

; each number to the nearest bfloat16, ties to even, if `short`; no number stays as it is not a number
define internal void @settle(ptr %x, i64 %rows, i64 %width, i64 %short) noinline {
entry:
  %wide = icmp eq i64 %short, 0
  br i1 %wide, label %out, label %begin
begin:
  %all = mul i64 %rows, %width
  br label %step
step:
  %i = phi i64 [0, %begin], [%i1, %step]
  %left = sub i64 %all, %i
$mask_left
  %xp = getelementptr float, ptr %x, i64 %i
  %a = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %xp, i32 4, <16 x i1> %m, <16 x float> zeroinitializer)
  %bits = bitcast <16 x float> %a to <16 x i32>
  %high = lshr <16 x i32> %bits, splat (i32 16)
  %odd = and <16 x i32> %high, splat (i32 1)
  %half = add <16 x i32> %odd, splat (i32 32767)
  %up = add <16 x i32> %bits, %half
  %cut = and <16 x i32> %up, splat (i32 -65536)
  %rounded = bitcast <16 x i32> %cut to <16 x float>
  %strange = fcmp uno <16 x float> %a, zeroinitializer
  %kept = select <16 x i1> %strange, <16 x float> splat (float 0x7FF8000000000000), <16 x float> %rounded
  call void @llvm.masked.store.v16f32.p0(<16 x float> %kept, ptr %xp, i32 4, <16 x i1> %m)
  %i1 = add nuw nsw i64 %i, 16
  %over = icmp sge i64 %i1, %all
  br i1 %over, label %out, label %step
out:
  ret void
}
