; y = x / sqrt(mean of x^2 + floor) * gain, row by row; the rows have `gains` gains by turns
define void @norm(ptr %x, ptr %gain, ptr %y, i64 %N, i64 %width, i64 %gains, float %share, float %floor) {
entry:
  br label %row
row:
  %n = phi i64 [0, %entry], [%n1, %next]
  %o = mul i64 %n, %width
  %xr = getelementptr float, ptr %x, i64 %o
  %yr = getelementptr float, ptr %y, i64 %o
  %turn = urem i64 %n, %gains
  %go = mul i64 %turn, %width
  %gr = getelementptr float, ptr %gain, i64 %go
  br label %square
square:
  %i = phi i64 [0, %row], [%i1, %square]
  %sums = phi <16 x float> [zeroinitializer, %row], [%sums1, %square]
  %left = sub i64 %width, %i
$mask_left
  %xp = getelementptr float, ptr %xr, i64 %i
  %xv = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %xp, i32 4, <16 x i1> %m, <16 x float> zeroinitializer)
  %sums1 = call <16 x float> @llvm.fma.v16f32(<16 x float> %xv, <16 x float> %xv, <16 x float> %sums)
  %i1 = add nuw nsw i64 %i, 16
  %over = icmp sge i64 %i1, %width
  br i1 %over, label %root, label %square
root:
  %total = call float @total(<16 x float> %sums1)
  %mean = fmul float %total, %share
  %raised = fadd float %mean, %floor
  %length = call float @llvm.sqrt.f32(float %raised)
  %factor = fdiv float 1.0, %length
$spread_factor
  br label %scale
scale:
  %j = phi i64 [0, %root], [%j1, %scale]
  %jleft = sub i64 %width, %j
$mask_jleft
  %jp = getelementptr float, ptr %xr, i64 %j
  %jv = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %jp, i32 4, <16 x i1> %jm, <16 x float> zeroinitializer)
  %gp = getelementptr float, ptr %gr, i64 %j
  %gv = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %gp, i32 4, <16 x i1> %jm, <16 x float> zeroinitializer)
  %scaled = fmul <16 x float> %jv, %factorv
  %gained = fmul <16 x float> %scaled, %gv
  %yp = getelementptr float, ptr %yr, i64 %j
  call void @llvm.masked.store.v16f32.p0(<16 x float> %gained, ptr %yp, i32 4, <16 x i1> %jm)
  %j1 = add nuw nsw i64 %j, 16
  %jover = icmp sge i64 %j1, %width
  br i1 %jover, label %next, label %scale
next:
  %n1 = add i64 %n, 1
  %done = icmp eq i64 %n1, %N
  br i1 %done, label %out, label %row
out:
  ret void
}

; silu of the first half times the second
define void @gate(ptr %x, ptr %y, i64 %N, i64 %F) {
entry:
  br label %row
row:
  %n = phi i64 [0, %entry], [%n1, %next]
  %o = mul i64 %n, %F
  %o2 = mul i64 %o, 2
  %xr = getelementptr float, ptr %x, i64 %o2
  %ur = getelementptr float, ptr %xr, i64 %F
  %yr = getelementptr float, ptr %y, i64 %o
  br label %step
step:
  %i = phi i64 [0, %row], [%i1, %step]
  %left = sub i64 %F, %i
$mask_left
  %xp = getelementptr float, ptr %xr, i64 %i
  %g = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %xp, i32 4, <16 x i1> %m, <16 x float> zeroinitializer)
  %up = getelementptr float, ptr %ur, i64 %i
  %u = call <16 x float> @llvm.masked.load.v16f32.p0(ptr %up, i32 4, <16 x i1> %m, <16 x float> zeroinitializer)
  %size = call <16 x float> @llvm.fabs.v16f32(<16 x float> %g)
  %minus = fneg <16 x float> %size
  %z = call <16 x float> @exponential(<16 x float> %minus)
  %one = fadd <16 x float> %z, splat (float 1.0)
  %negative = fcmp olt <16 x float> %g, zeroinitializer
  %top = select <16 x i1> %negative, <16 x float> %z, <16 x float> splat (float 1.0)
  %raised = fmul <16 x float> %g, %top
  %silu = fdiv <16 x float> %raised, %one
  %answer = fmul <16 x float> %silu, %u
  %yp = getelementptr float, ptr %yr, i64 %i
  call void @llvm.masked.store.v16f32.p0(<16 x float> %answer, ptr %yp, i32 4, <16 x i1> %m)
  %i1 = add nuw nsw i64 %i, 16
  %over = icmp sge i64 %i1, %F
  br i1 %over, label %next, label %step
next:
  %n1 = add i64 %n, 1
  %done = icmp eq i64 %n1, %N
  br i1 %done, label %out, label %row
out:
  ret void
}

; x * cos + halves of x exchanged * sin
define void @rotate(ptr %x, ptr %cos, ptr %sin, ptr %y, i64 %N, i64 %heads, i64 %D, i64 %to_row) {
entry:
  %half = udiv i64 %D, 2
  %out_row = mul i64 %heads, %D
  br label %row
row:
  %n = phi i64 [0, %entry], [%n1, %next]
  %xo = mul i64 %n, %to_row
  %yo = mul i64 %n, %out_row
  %to = mul i64 %n, %D
  %xr = getelementptr float, ptr %x, i64 %xo
  %yr = getelementptr float, ptr %y, i64 %yo
  %cr = getelementptr float, ptr %cos, i64 %to
  %sr = getelementptr float, ptr %sin, i64 %to
  br label %head
head:
  %h = phi i64 [0, %row], [%h1, %ended]
  %ho = mul i64 %h, %D
  %xh = getelementptr float, ptr %xr, i64 %ho
  %yh = getelementptr float, ptr %yr, i64 %ho
  br label %step
step:
  %i = phi i64 [0, %head], [%i1, %step]
  %ip = add i64 %i, %half
  %xa = getelementptr float, ptr %xh, i64 %i
  %xb = getelementptr float, ptr %xh, i64 %ip
  %ca = getelementptr float, ptr %cr, i64 %i
  %cb = getelementptr float, ptr %cr, i64 %ip
  %sa = getelementptr float, ptr %sr, i64 %i
  %sb = getelementptr float, ptr %sr, i64 %ip
  %ya = getelementptr float, ptr %yh, i64 %i
  %yb = getelementptr float, ptr %yh, i64 %ip
  %rest = sub i64 %half, %i
  %hl = insertelement <8 x i64> poison, i64 %rest, i64 0
  %hv = shufflevector <8 x i64> %hl, <8 x i64> poison, <8 x i32> zeroinitializer
  %hm = icmp sgt <8 x i64> %hv, <i64 0, i64 1, i64 2, i64 3, i64 4, i64 5, i64 6, i64 7>
  %a = call <8 x float> @llvm.masked.load.v8f32.p0(ptr %xa, i32 4, <8 x i1> %hm, <8 x float> zeroinitializer)
  %b = call <8 x float> @llvm.masked.load.v8f32.p0(ptr %xb, i32 4, <8 x i1> %hm, <8 x float> zeroinitializer)
  %c0 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr %ca, i32 4, <8 x i1> %hm, <8 x float> zeroinitializer)
  %c1 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr %cb, i32 4, <8 x i1> %hm, <8 x float> zeroinitializer)
  %s0 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr %sa, i32 4, <8 x i1> %hm, <8 x float> zeroinitializer)
  %s1 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr %sb, i32 4, <8 x i1> %hm, <8 x float> zeroinitializer)
  %u = fmul <8 x float> %b, %s0
  %v = fmul <8 x float> %a, %s1
  %left = call <8 x float> @llvm.fma.v8f32(<8 x float> %a, <8 x float> %c0, <8 x float> %u)
  %right = call <8 x float> @llvm.fma.v8f32(<8 x float> %b, <8 x float> %c1, <8 x float> %v)
  call void @llvm.masked.store.v8f32.p0(<8 x float> %left, ptr %ya, i32 4, <8 x i1> %hm)
  call void @llvm.masked.store.v8f32.p0(<8 x float> %right, ptr %yb, i32 4, <8 x i1> %hm)
  %i1 = add nuw nsw i64 %i, 8
  %through = icmp sge i64 %i1, %half
  br i1 %through, label %ended, label %step
ended:
  %h1 = add i64 %h, 1
  %last = icmp eq i64 %h1, %heads
  br i1 %last, label %next, label %head
next:
  %n1 = add i64 %n, 1
  %done = icmp eq i64 %n1, %N
  br i1 %done, label %out, label %row
out:
  ret void
}
