; One to six rows: all panels of the answer, several at once while there are so many.
define internal void @few_$rows(ptr %x, ptr %w, ptr %scale, ptr %bias, ptr %y, i64 %K, i64 %N, i64 %ldy) {
entry:
  br label %head
head:
  %n = phi i64 [0, %entry], [%after_several, %several], [%after_one, %one]
  %left = sub i64 %N, %n
  %more = icmp sgt i64 %left, 0
  br i1 %more, label %place, label %out
place:
  %before = mul i64 %n, %K
  %wn = getelementptr $type, ptr %w, i64 %before
  %sn = getelementptr float, ptr %scale, i64 %n
  %bn = getelementptr float, ptr %bias, i64 %n
  %yn = getelementptr float, ptr %y, i64 %n
  %panel = mul i64 %K, $width
  %ahead = getelementptr $type, ptr %wn, i64 %panel
  %enough = icmp sge i64 %left, $together
  br i1 %enough, label %several, label %one
several:
  call void @block_${rows}_$panels(ptr %x, ptr %wn, ptr %sn, ptr %bn, ptr %yn, i64 %K, i64 %ldy, i64 %left,
  ptr %ahead, i64 $row_bytes)
  %after_several = add i64 %n, $together
  br label %head
one:
  call void @block_${rows}_1(ptr %x, ptr %wn, ptr %sn, ptr %bn, ptr %yn, i64 %K, i64 %ldy, i64 %left,
  ptr %ahead, i64 $row_bytes)
  %after_one = add i64 %n, $width
  br label %head
out:
  ret void
}
