; One query of one head: its columns are the first `prefix`, then those listed.
define internal void @query(ptr %q, ptr %k, ptr %v, ptr %y, ptr %scratch, i64 %prefix, ptr %list, i64 %more, float %scale)
noinline {
entry:
$load_query
  %all = add i64 %prefix, %more
  br label %score
score:
  %j = phi i64 [0, %entry], [%j1, %scored]
  %max = phi float [0xFFF0000000000000, %entry], [%max1, %scored]
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
$dot
  %s = call float @total(<16 x float> %d$last)
  %sp = getelementptr float, ptr %scratch, i64 %j
  store float %s, ptr %sp, align 4
  %above = fcmp ogt float %s, %max
  %max1 = select i1 %above, float %s, float %max
  br label %scored
scored:
  %j1 = add nuw nsw i64 %j, 1
  %finished = icmp eq i64 %j1, %all
  br i1 %finished, label %weigh, label %score
weigh:
  %endp = getelementptr float, ptr %scratch, i64 %all
  store <16 x float> splat (float 0xFFF0000000000000), ptr %endp, align 4
$spread_max
$spread_scale
  br label %weight
weight:
  %w = phi i64 [0, %weigh], [%w1, %weight]
  %sums = phi <16 x float> [zeroinitializer, %weigh], [%sums1, %weight]
  %wp = getelementptr float, ptr %scratch, i64 %w
  %raw = load <16 x float>, ptr %wp, align 4
  %below = fsub <16 x float> %raw, %maxv
  %power = fmul <16 x float> %below, %scalev
  %weights = call <16 x float> @exponential(<16 x float> %power)
  store <16 x float> %weights, ptr %wp, align 4
  %sums1 = fadd <16 x float> %sums, %weights
  %w1 = add nuw nsw i64 %w, 16
  %over = icmp sge i64 %w1, %all
  br i1 %over, label %sum, label %weight
sum:
  %denominator = call float @total(<16 x float> %sums1)
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
  %np = getelementptr float, ptr %scratch, i64 %n
  %nw = load float, ptr %np, align 4
$spread_weight
$value_terms
  br label %valued
valued:
  %n1 = add nuw nsw i64 %n, 1
  %summed = icmp eq i64 %n1, %all
  br i1 %summed, label %end, label %value
end:
$spread_denominator
$store_answer
  ret void
}

define void @attend(ptr %q, ptr %k, ptr %v, ptr %y, ptr %scratch, ptr %plan, i64 %N, i64 %kv, i64 %group, i64 %to_row, i64 %to_head, float %scale) {
entry:
  br label %token
token:
  %n = phi i64 [0, %entry], [%n1, %next_token]
  %po = mul i64 %n, 4
  %p0 = getelementptr i64, ptr %plan, i64 %po
  %row = load i64, ptr %p0
  %p1 = getelementptr i64, ptr %p0, i64 1
  %prefix = load i64, ptr %p1
  %p2 = getelementptr i64, ptr %p0, i64 2
  %first = load i64, ptr %p2
  %p3 = getelementptr i64, ptr %p0, i64 3
  %more = load i64, ptr %p3
  %list = getelementptr i64, ptr %plan, i64 %first
  %ro = mul i64 %row, %to_row
  br label %head
head:
  %h = phi i64 [0, %token], [%h1, %next_head]
  %ho = mul i64 %h, %to_head
  %base = add i64 %ro, %ho
  %kb = getelementptr float, ptr %k, i64 %base
  %vb = getelementptr float, ptr %v, i64 %base
  br label %member
member:
  %g = phi i64 [0, %head], [%g1, %member]
  %nk = mul i64 %n, %kv
  %nh = add i64 %nk, %h
  %ng = mul i64 %nh, %group
  %which = add i64 %ng, %g
  %qo = mul i64 %which, $dim
  %qp = getelementptr float, ptr %q, i64 %qo
  %yp = getelementptr float, ptr %y, i64 %qo
  call void @query(ptr %qp, ptr %kb, ptr %vb, ptr %yp, ptr %scratch, i64 %prefix, ptr %list, i64 %more, float %scale)
  %g1 = add i64 %g, 1
  %members = icmp eq i64 %g1, %group
  br i1 %members, label %next_head, label %member
next_head:
  %h1 = add i64 %h, 1
  %heads = icmp eq i64 %h1, %kv
  br i1 %heads, label %next_token, label %head
next_token:
  %n1 = add i64 %n, 1
  %tokens = icmp eq i64 %n1, %N
  br i1 %tokens, label %out, label %token
out:
  ret void
}
