; The sums of some rows with some panels; `left` columns of the answer remain, which may be fewer than the panels have.
; Meanwhile a single panel asks for what lies `ahead`.
define internal void @block_${rows}_$panels(ptr %x, ptr %w, ptr %scale, ptr %bias, ptr %y, i64 %K, i64 %ldy, i64 %left,
ptr %ahead, i64 %step) noinline {
entry:
$starts
  br label %part
part:
  %from = phi i64 [0, %entry], [%to, %whole], [%to, %ragged]
  %rest = sub i64 %K, %from
  %short = icmp slt i64 %rest, $terms
  %size = select i1 %short, i64 %rest, i64 $terms
  %to = add i64 %from, %size
  br label %term
term:
  %k = phi i64 [%from, %part], [%next, %term]
$sums
  %next = add nuw nsw i64 %k, 1
  %done = icmp eq i64 %next, %to
  br i1 %done, label %end, label %term
end:
  %first = icmp eq i64 %from, 0
  %last = icmp eq i64 %to, %K
  %full = icmp sge i64 %left, $columns
  br i1 %full, label %whole, label %ragged
; stores under a mask are slow on some processors
whole:
$whole
  br i1 %last, label %out, label %part
ragged:
$ragged
  br i1 %last, label %out, label %part
out:
  ret void
}
