; Queries of one head, whose columns are the first `prefix`, then those listed.
define internal void @query_$members(ptr %q, ptr %k, ptr %v, ptr %y, ptr %scratch, i64 %prefix, ptr %list, i64 %more, float %scale)
noinline {
entry:
  %all = add i64 %prefix, %more
  %room = add i64 %all, $lanes
$load_queries
  br label %score
score:
  %j = phi i64 [0, %entry], [%j1, %scored]
$largest
  %far = icmp sge i64 %j, %prefix
  br i1 %far, label %listed, label %near
listed:
  %place = sub i64 %j, %prefix
  %lp = getelementptr i64, ptr %list, i64 %place
  %lc = load i64, ptr %lp
  br label %near
near:
  %column = phi i64 [%j, %score], [%lc, %listed]
  %at = mul i64 %column, $dim
  %kp = getelementptr float, ptr %k, i64 %at
$scores
  br label %scored
scored:
  %j1 = add nuw nsw i64 %j, 1
  %finished = icmp eq i64 %j1, %all
  br i1 %finished, label %weigh, label %score
weigh:
$ends_of_scores
$spread_scale
  br label %weight
weight:
  %w = phi i64 [0, %weigh], [%w1, %weight]
$sums
$weights
  %w1 = add nuw nsw i64 %w, $lanes
  %over = icmp sge i64 %w1, %all
  br i1 %over, label %sum, label %weight
sum:
$denominators
  br label %value
value:
  %n = phi i64 [0, %sum], [%n1, %valued]
$value_sums
  %vfar = icmp sge i64 %n, %prefix
  br i1 %vfar, label %vlisted, label %vnear
vlisted:
  %vplace = sub i64 %n, %prefix
  %vlp = getelementptr i64, ptr %list, i64 %vplace
  %vlc = load i64, ptr %vlp
  br label %vnear
vnear:
  %vcolumn = phi i64 [%n, %value], [%vlc, %vlisted]
  %vat = mul i64 %vcolumn, $dim
  %vp = getelementptr float, ptr %v, i64 %vat
$value_terms
  br label %valued
valued:
  %n1 = add nuw nsw i64 %n, 1
  %summed = icmp eq i64 %n1, %all
  br i1 %summed, label %end, label %value
end:
$store_answers
  ret void
}
