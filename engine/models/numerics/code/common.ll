; What attention and functions of rows share.
declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
declare <16 x float> @llvm.roundeven.v16f32(<16 x float>)
declare <16 x float> @llvm.fabs.v16f32(<16 x float>)
declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, i32, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, i32, <16 x i1>)
declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, i32, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, i32, <8 x i1>)
declare float @llvm.sqrt.f32(float)

; exp of numbers that are at most zero
define internal <16 x float> @exponential(<16 x float> %x) alwaysinline {
  %tiny = fcmp olt <16 x float> %x, $smallest
  %safe = select <16 x i1> %tiny, <16 x float> $smallest, <16 x float> %x
  %t = fmul <16 x float> %safe, $log2e
  %n = call <16 x float> @llvm.roundeven.v16f32(<16 x float> %t)
  %r0 = call <16 x float> @llvm.fma.v16f32(<16 x float> %n, <16 x float> $minus_high, <16 x float> %safe)
  %r = call <16 x float> @llvm.fma.v16f32(<16 x float> %n, <16 x float> $minus_low, <16 x float> %r0)
$series
  %i = fptosi <16 x float> %n to <16 x i32>
  %shifted = shl <16 x i32> %i, splat (i32 23)
  %bits = bitcast <16 x float> %p6 to <16 x i32>
  %scaled = add <16 x i32> %bits, %shifted
  %e = bitcast <16 x i32> %scaled to <16 x float>
  %answer = select <16 x i1> %tiny, <16 x float> zeroinitializer, <16 x float> %e
  ret <16 x float> %answer
}

; the sixteen parts of a sum, in pairs
define internal float @total(<16 x float> %v) alwaysinline {
  %a = shufflevector <16 x float> %v, <16 x float> poison, <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %b = shufflevector <16 x float> %v, <16 x float> poison, <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %c = fadd <8 x float> %a, %b
  %d = shufflevector <8 x float> %c, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %e = shufflevector <8 x float> %c, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %f = fadd <4 x float> %d, %e
  %g = shufflevector <4 x float> %f, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %h = shufflevector <4 x float> %f, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %i = fadd <2 x float> %g, %h
  %j = extractelement <2 x float> %i, i64 0
  %k = extractelement <2 x float> %i, i64 1
  %l = fadd float %j, %k
  ret float %l
}
