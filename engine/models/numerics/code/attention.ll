; Every query of a forward, a head's together as far as the registers go.
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
  %g = phi i64 [0, %head], [%g1, %done]
  %nk = mul i64 %n, %kv
  %nh = add i64 %nk, %h
  %ng = mul i64 %nh, %group
  %which = add i64 %ng, %g
  %qo = mul i64 %which, $dim
  %qp = getelementptr float, ptr %q, i64 %qo
  %yp = getelementptr float, ptr %y, i64 %qo
  %left = sub i64 %group, %g
  %enough = icmp sge i64 %left, $most
  br i1 %enough, label %several, label %one
several:
  call void @query_$most(ptr %qp, ptr %kb, ptr %vb, ptr %yp, ptr %scratch, i64 %prefix, ptr %list, i64 %more, float %scale)
  br label %done
one:
  call void @query_1(ptr %qp, ptr %kb, ptr %vb, ptr %yp, ptr %scratch, i64 %prefix, ptr %list, i64 %more, float %scale)
  br label %done
done:
  %taken = phi i64 [$most, %several], [1, %one]
  %g1 = add i64 %g, %taken
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
