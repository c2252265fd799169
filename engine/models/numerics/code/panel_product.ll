; Any number of rows: panel by panel, which stays in the cache while blocks of at most six rows of about one size use it.
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
define void @product(ptr %x, ptr %w, ptr %scale, ptr %bias, ptr %y, i64 %K, i64 %N, i64 %ldy, i64 %M) {
entry:
  switch i64 %M, label %many [ $few_choices ]
$few
many:
  %up = add i64 %M, $almost
  %blocks = udiv i64 %up, $most
  %step = udiv i64 $row_bytes, %blocks
  %turns = udiv i64 %K, $streams
  %share = mul i64 %turns, %step
  %whole = mul i64 %K, $row_bytes
  br label %panel
panel:
  %n = phi i64 [0, %many], [%after, %next_panel]
  %left = sub i64 %N, %n
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %place, label %out
place:
  %before = mul i64 %n, %K
  %wn = getelementptr $type, ptr %w, i64 %before
  %sn = getelementptr float, ptr %scale, i64 %n
  %bn = getelementptr float, ptr %bias, i64 %n
  %yn = getelementptr float, ptr %y, i64 %n
  br label %rows
rows:
  %b = phi i64 [0, %place], [%b1, %next_rows]
  %b1 = add i64 %b, 1
  %low = mul i64 %b, %M
  %from = udiv i64 %low, %blocks
  %high = mul i64 %b1, %M
  %to = udiv i64 %high, %blocks
  %count = sub i64 %to, %from
  %xo = mul i64 %from, %K
  %xb = getelementptr float, ptr %x, i64 %xo
  %yo = mul i64 %from, %ldy
  %yb = getelementptr float, ptr %yn, i64 %yo
  %done = mul i64 %b, %share
  %far = add i64 %whole, %done
  %ahead = getelementptr i8, ptr %wn, i64 %far
  switch i64 %count, label %next_rows [ $block_choices ]
$block
next_rows:
  %last = icmp eq i64 %b1, %blocks
  br i1 %last, label %next_panel, label %rows
next_panel:
  %after = add i64 %n, $width
  br label %panel
out:
  ret void
}
