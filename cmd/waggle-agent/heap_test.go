package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

const mb = 1 << 20

// heapBench is a heap whose sizes the test sets.
type heapBench struct {
	*testing.T
	began time.Time

	mu       sync.Mutex // guards the fields below
	pacer    *heapPacer // does not change
	now      heapSizes
	percent  int
	limit    int64
	released []int // seconds from the begin to each release
	unmapped int
}

// onHeap runs f with a heap that has as much garbage as live bytes, and with the memory limit of the environment.
func onHeap(t *testing.T, live uint64, limit int64, f func(*heapBench)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &heapBench{T: t, began: time.Now(), now: heapSizes{live: live, objects: 2 * live, mapped: 3 * live}, limit: limit}
		pacer := newHeapPacer(heapCalls{sizes: b.sizes, setPercent: b.setPercent, setLimit: b.setLimit, release: b.release, unmap: b.unmap})
		defer pacer.stop()
		b.mu.Lock()
		b.pacer = pacer
		b.mu.Unlock()
		f(b)
	})
}

func (b *heapBench) sizes() heapSizes {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *heapBench) setPercent(percent int) (before int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, b.percent = b.percent, percent
	return before
}

func (b *heapBench) setLimit(limit int64) (before int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if before = b.limit; limit >= 0 {
		b.limit = limit
	}
	return before
}

func (b *heapBench) unmap() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unmapped++
}

// unmaps compares the number of calls of unmap.
func (b *heapBench) unmaps(want int) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unmapped != want {
		b.Errorf("the program was unmapped %d times, want %d", b.unmapped, want)
	}
}

// release returns the excess.
func (b *heapBench) release() {
	b.mu.Lock()
	b.released = append(b.released, int(time.Since(b.began)/time.Second))
	pacer := b.pacer
	b.mu.Unlock()
	if !pacer.mu.TryLock() {
		b.Error("a release holds the lock, and its collection waits for the lock")
		return
	}
	pacer.mu.Unlock()
	b.hold(0, 0)
	b.collect()
}

// hold sets the bytes of garbage and of free memory.
func (b *heapBench) hold(garbage, free uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now.objects, b.now.free = b.now.live+garbage, free
}

// collect calls adjust, as the runtime does after a collection.
func (b *heapBench) collect() {
	b.Helper()
	if !b.pacer.adjust() {
		b.Error("the pacer has stopped")
	}
}

// pass lets time pass and then compares the times of all releases, in seconds.
func (b *heapBench) pass(seconds int, want ...int) {
	b.Helper()
	time.Sleep(time.Duration(seconds) * time.Second)
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.released, want) {
		b.Fatalf("releases after %v s, want %v", b.released, want)
	}
}

// grows compares the settings of the runtime.
func (b *heapBench) grows(percent int, limit int64) {
	b.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.percent != percent || b.limit != limit {
		b.Fatalf("the heap grows by %d %% up to %d bytes, want %d %% and %d bytes", b.percent, b.limit, percent, limit)
	}
}

func TestHeapPacer_ReleasesAfterBurst(t *testing.T) {
	onHeap(t, 10*mb, math.MaxInt64, func(b *heapBench) {
		for range 10 {
			b.pass(1)
			b.collect()
		}
		b.pass(1)
		b.pass(1, 12)
		b.pass(1000, 12)
	})
}

func TestHeapPacer_ReleasesNothingDuringStart(t *testing.T) {
	t.Parallel()
	for last, want := range map[int]int{0: 5, 1: 5, 3: 5, 4: 6} { // seconds to the last collection of the start and to the release
		t.Run(strconv.Itoa(last), func(t *testing.T) {
			onHeap(t, 10*mb, math.MaxInt64, func(b *heapBench) {
				if last > 0 {
					b.pass(last)
					b.collect()
				}
				b.pass(want - 1 - last)
				b.pass(1, want)
			})
		})
	}
}

// A release replaces the periodic collection of the runtime, which comes after two minutes.
func TestHeapPacer_IdleHeap_ReleasesEveryTwoMinutes(t *testing.T) {
	onHeap(t, 10*mb, math.MaxInt64, func(b *heapBench) {
		b.pass(11, 5)
		b.hold(3*mb, 0)
		b.pass(108, 5)
		b.pass(1, 5, 120)
		b.pass(6, 5, 120)
		b.hold(0, 3*mb)
		b.pass(108, 5, 120)
		b.pass(1, 5, 120, 235)
		b.grows(heapGrowth, math.MaxInt64)
	})
}

func TestHeapPacer_BusyHeap_ReleasesEveryTwoMinutes(t *testing.T) {
	onHeap(t, 10*mb, math.MaxInt64, func(b *heapBench) {
		time.Sleep(time.Second / 2) // no collection is simultaneous with a check
		busy := func(seconds int, want ...int) {
			t.Helper()
			for range seconds {
				b.hold(mb, 2*mb)
				b.collect()
				time.Sleep(time.Second)
			}
			b.pass(0, want...)
		}
		busy(114)
		busy(1, 115)
		busy(114, 115)
		busy(1, 115, 230)
		busy(115, 115, 230, 345)
	})
}

// A start and a burst of work may release several times, with the least pause. After that the releases use a thousandth of a CPU.
func TestHeapPacer_ReleasesUseAThousandthOfACPU(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]struct{ burst, pause int }{ // releases of the burst, and seconds between two releases after it
		10 * mb: {100, leastSeconds}, 100 * mb: {10, 100}, 300 * mb: {3, 300},
	} {
		t.Run(strconv.FormatUint(live/mb, 10), func(t *testing.T) {
			onHeap(t, live, math.MaxInt64, func(b *heapBench) {
				for range 4000 {
					b.hold(live, 0)
					time.Sleep(time.Second)
				}
				b.mu.Lock()
				defer b.mu.Unlock()
				if len(b.released) < want.burst+5 {
					b.Fatalf("only %d releases: %v", len(b.released), b.released)
				}
				for i, at := range b.released[1:] {
					pause := at - b.released[i]
					if i+1 < want.burst-1 && pause != leastSeconds || i > want.burst+2 && pause != want.pause {
						b.Fatalf("release %d came %d s after the previous one: %v", i+2, pause, b.released)
					}
				}
			})
		})
	}
}

const leastSeconds = int(leastPause / time.Second)

// The code that only the start or a burst uses does not stay, even if the heap has no excess.
func TestHeapPacer_UnmapsProgramAtEachCheck(t *testing.T) {
	onHeap(t, 10*mb, math.MaxInt64, func(b *heapBench) {
		b.hold(0, 0)
		b.pass(4)
		b.unmaps(0)
		b.pass(1)
		b.unmaps(1)
		b.collect()
		b.pass(2)
		b.unmaps(2)
		b.pass(112)
		b.unmaps(2)
		b.pass(1)
		b.unmaps(3)
	})
}

// The runtime would collect such a heap within its pause.
func TestHeapPacer_VeryLargeIdleHeap_HasNoPeriodicCollections(t *testing.T) {
	onHeap(t, 300*mb, math.MaxInt64, func(b *heapBench) {
		b.pacer.mu.Lock()
		b.pacer.releases.After(releaseBurst) // earlier releases
		b.pacer.mu.Unlock()
		b.pass(11, 5)
		b.hold(80*mb, 0)
		b.pass(108, 5)
		b.grows(leastGrowth, math.MaxInt64)
		b.pass(1, 5)
		b.grows(-1, 910*mb)
		b.pass(179, 5)
		b.pass(1, 5, 300)
		b.grows(steadyGrowth, math.MaxInt64)
	})
}

func TestHeapPacer_IdleHeapWithLittleGarbage_HasNoPeriodicCollections(t *testing.T) {
	onHeap(t, 128*mb, math.MaxInt64, func(b *heapBench) {
		b.hold(10*mb, 6*mb)
		b.pass(114)
		b.grows(steadyGrowth, math.MaxInt64)
		b.pass(1)
		b.grows(-1, 438*mb)
		b.pass(1000)
		b.grows(-1, 438*mb)
		b.collect() // the limit is reached
		b.grows(50, math.MaxInt64)
		b.pass(115)
		b.grows(-1, 438*mb)
		b.hold(10*mb, 6*mb+1)
		b.pass(114)
		b.pass(1, 1345) // 230 s after the collection
		b.grows(50, math.MaxInt64)
	})
}

func TestHeapPacer_KeepsMemoryLimitOfUser(t *testing.T) {
	onHeap(t, 128*mb, 1<<30, func(b *heapBench) {
		b.hold(10*mb, 0)
		b.pass(200)
		b.grows(steadyGrowth, 1<<30)
		b.collect()
		b.grows(50, 1<<30)
	})
}

// During the start, collections are rare. A heap without a collection does not keep the growth of the start.
func TestHeapPacer_StartHasGrowthOfItsOwn(t *testing.T) {
	onHeap(t, 8*mb, math.MaxInt64, func(b *heapBench) {
		b.hold(0, 0)
		b.grows(startGrowth, math.MaxInt64)
		b.pass(1)
		b.collect()
		b.grows(startGrowth, math.MaxInt64)
		b.pass(3)
		b.grows(startGrowth, math.MaxInt64)
		b.pass(1)
		b.grows(heapGrowth, math.MaxInt64)
	})
}

func TestHeapPacer_SetsGrowthAfterCollection(t *testing.T) {
	onHeap(t, 128*mb, math.MaxInt64, func(b *heapBench) {
		b.hold(0, 0)
		b.pass(6)
		b.collect()
		b.grows(25, math.MaxInt64) // the live heap has grown from nothing
		b.pass(1)
		b.collect()
		b.grows(steadyGrowth, math.MaxInt64)
		b.pass(60)
		b.collect()
		b.grows(50, math.MaxInt64)
	})
}

func TestHeapPacer_ChangesNothingAfterStop(t *testing.T) {
	onHeap(t, 128*mb, math.MaxInt64, func(b *heapBench) {
		b.pass(1)
		b.pacer.mu.Lock() // stop does not wait
		b.pacer.stop()
		b.pacer.mu.Unlock()
		if b.pacer.adjust() {
			b.Error("the pacer continues after a stop")
		}
		b.pacer.check() // its timer has run before the stop
		b.pass(1000)
		b.grows(startGrowth, math.MaxInt64)
	})
}

func TestHeapSizes_Excessive(t *testing.T) {
	t.Parallel()
	for s, want := range map[heapSizes]bool{
		{live: 10 * mb, objects: 12 * mb}:                    false,
		{live: 10 * mb, objects: 12*mb + 1}:                  true,
		{live: 10 * mb, objects: 11 * mb, free: mb + 1}:      true,
		{live: 10 * mb, objects: 9 * mb, free: 3 * mb}:       false, // objects were freed since the collection
		{live: 10 * mb, objects: 10 * mb, mapped: 100 * mb}:  false, // free slots, and memory outside the heap
		{live: 160 * mb, objects: 170 * mb, free: 10 * mb}:   false,
		{live: 160 * mb, objects: 170 * mb, free: 10*mb + 1}: true,
	} {
		if got := s.excessive(); got != want {
			t.Errorf("%+v: excessive is %v", s, got)
		}
	}
}

func TestHeapSizes_IdleLimit(t *testing.T) {
	t.Parallel()
	for s, want := range map[heapSizes]int64{
		{live: 100 * mb, objects: 100 * mb, mapped: 150 * mb}: 214 * mb,
		{live: 100 * mb, objects: 130 * mb, mapped: 190 * mb}: 224 * mb, // 30 MB of the growth are garbage
		{live: 100 * mb, objects: 90 * mb, mapped: 150 * mb}:  214 * mb, // objects were freed since the collection
		{live: 100 * mb, objects: 180 * mb, mapped: 230 * mb}: 230 * mb, // the heap has grown by more
		{objects: mb, mapped: 5 * mb}:                         5 * mb,   // no collection yet
	} {
		if got := s.idleLimit(); got != want {
			t.Errorf("%+v: the limit is %d, want %d", s, got, want)
		}
	}
}

// The metrics of the runtime show a burst and its release. Not parallel: other tests use the same heap.
func TestReadHeap_ShowsBurstAndRelease(t *testing.T) {
	const burst = 64 * mb
	debug.FreeOSMemory()
	before := readHeap()
	block := make([]byte, burst)
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
	during := readHeap()
	runtime.KeepAlive(block)
	if during.live = before.live; !during.excessive() || during.mapped < before.mapped+burst/2 { // a collection may have counted the block
		t.Errorf("%d MB more are no excess: %+v, before it %+v", burst/mb, during, before)
	}
	debug.FreeOSMemory()
	excess := func(s heapSizes) uint64 { return s.objects + s.free } // some megabytes stay free: the runtime allocates during the release too
	if after := readHeap(); excess(after) > excess(during)-burst/2 || after.objects > during.objects-burst/2 || after.mapped > during.mapped-burst/2 {
		t.Errorf("a release returns too little: %+v, before it %+v", after, during)
	}
}

// Not parallel: the setting applies to the whole process.
func TestBoundHeap_KeepsUserSetting(t *testing.T) {
	before := debug.SetGCPercent(200)
	defer debug.SetGCPercent(before)
	current := func() int {
		percent := debug.SetGCPercent(200)
		debug.SetGCPercent(percent)
		return percent
	}
	(&agent{environ: []string{"PATH=/bin", "GOGC=200"}}).boundHeap()()
	if got := current(); got != 200 {
		t.Errorf("with GOGC=200 it is %d", got)
	}
	(&agent{environ: []string{"PATH=/bin"}}).boundHeap()()
	if got := current(); got != startGrowth {
		t.Errorf("without it is %d, want %d", got, startGrowth)
	}
}

// boundHeap sets the growth after each collection, not only after the first. Not parallel, see above.
func TestBoundHeap_IsSetAfterEachCollection(t *testing.T) {
	before := debug.SetGCPercent(200)
	defer debug.SetGCPercent(before)
	stop := (&agent{}).boundHeap()
	defer stop()
	for range 3 {
		debug.SetGCPercent(33)
		for debug.SetGCPercent(33) == 33 { // set in a previous iteration
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
	}
}

func TestGrowth(t *testing.T) {
	t.Parallel()
	for live, want := range map[uint64]int{0: 75, 1 << 20: 75, 42 << 20: 75, 64 << 20: 50, 128 << 20: 25, 200 << 20: 16, 1 << 30: 15, 1 << 40: 15} {
		if got := growth(live, live*9/10, time.Second, heapGrowth); got != want {
			t.Errorf("%d bytes: it grows by %d %%, want %d %%", live, got, want)
		}
		if got := growth(live, live*99/100, time.Second, heapGrowth); got != max(want, steadyGrowth) {
			t.Errorf("%d bytes that do not become more: it grows by %d %%, want %d %%", live, got, max(want, steadyGrowth))
		}
	}
	for live, want := range map[uint64]int{0: 75, 64 << 20: 75, 128 << 20: 50, 200 << 20: 32, 1 << 30: 30} {
		if got := growth(live, live, time.Minute, heapGrowth); got != want {
			t.Errorf("%d bytes at rest: it grows by %d %%, want %d %%", live, got, want)
		}
	}
	for live, want := range map[uint64]int{0: 400, 8 << 20: 400, 32 << 20: 100, 128 << 20: 25, 1 << 30: 15} {
		if got := growth(live, live*9/10, time.Second, startGrowth); got != want {
			t.Errorf("%d bytes during the start: it grows by %d %%, want %d %%", live, got, want)
		}
	}
}
