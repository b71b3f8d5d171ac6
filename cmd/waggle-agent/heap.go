package main

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waggle-net/waggle/pkg/throttle"
)

const (
	// heapGrowth is the heap growth in percent of the live heap until the next collection. Go's default of 100 kept half of the memory of an idle agent free.
	// Collections use a tenth of the agent's CPU time, and run a third more often with this value.
	heapGrowth = 75
	// startGrowth is the growth in percent until the first check: few objects of a start stay. An agent without pods started in 390 ms, and in 440 ms with 100 percent.
	startGrowth = 400
	// maxHeapGrowth is the maximum growth of a busy heap in bytes. Objects that are live when a large heap stops growing are spread between garbage and keep the
	// memory of both allocated: with 75 percent this was a fifth of the memory for the pods of a large cluster. With 32 MB, a new pod costs a sixth more CPU
	// time.
	maxHeapGrowth = 32 << 20
	// leastGrowth is the minimum growth in percent while the live heap grows, and steadyGrowth the minimum while it does not. They bound the cost of collecting a
	// large heap: with 15 percent, collections were 39 % of the CPU time of an agent in a large cluster with churn. With 30 percent during its start, the live
	// objects were spread over a quarter more memory.
	leastGrowth  = 15
	steadyGrowth = 30
	// maxRestGrowth is the maximum growth in bytes of a heap that was not collected for growthRest.
	maxRestGrowth = 64 << 20
	// growthRest is the time between two collections from which on the second one sets the growth of restGrowth. An earlier collection is not worth its CPU time.
	growthRest = 30 * time.Second

	// startDelay is the time from the start to the first release. A release during the start would delay it, and leave the garbage of the loader.
	startDelay = 5 * time.Second
	// releaseDelay is the time from the last collection of a burst of work to a release. The release would otherwise leave garbage of the burst.
	releaseDelay = 2 * time.Second
	// checkInterval is the maximum time between two checks. It is a little less than the two minutes after which the runtime collects an idle heap: a release
	// collects garbage as well, so the collections of an idle heap do not become more frequent.
	checkInterval = 115 * time.Second
	// leastExcess is the minimum excess for a release in bytes, about as much as an idle agent of a small cluster allocates in a minute.
	leastExcess = 2 << 20
	// leastPause is the minimum time between two releases.
	leastPause = 15 * time.Second
	// releaseRatio is the minimum ratio of the time to the CPU time of all releases, of which releaseBurst needs no pause. A start and each burst of work need
	// several releases: while the pause after a release grew with the heap, the garbage of the start of an agent in a large cluster stayed for minutes.
	releaseRatio = 1000
	releaseBurst = time.Second
	// collectTime is the CPU time of a collection for 1 MB of live objects: 75 ms were measured for 92 MB of rows.
	collectTime = time.Millisecond
)

// heapPacer limits the memory of the heap. After each collection it sets the growth until the next one. It returns garbage and free memory to the system if
// both together are worth a collection: after the start and each burst of work, and every two minutes while the heap is idle or is never idle. At these times it
// also unmaps the pages of the program. While an idle heap has less garbage, the periodic collections of the runtime are off. Its timer is outside of the job
// groups, because it limits the heap from before the cells are built on, and calls only the runtime and the kernel.
type heapPacer struct {
	heapCalls
	limit   int64       // GOMEMLIMIT in bytes; math.MaxInt64 if it is not set
	first   time.Time   // earliest time of the first check
	timer   *time.Timer // calls check
	stopped atomic.Bool

	mu        sync.Mutex     // guards the fields below and the settings of the runtime
	last      time.Time      // time of the last collection, at first of the start
	live      uint64         // bytes of live objects at the last collection
	releases  throttle.Limit // limits the CPU time of releases
	resumes   time.Time      // earliest time of the next release
	due       time.Time      // latest time of the next check
	starting  bool           // no check has run
	suspended bool           // a memory limit replaces the growth in percent: the runtime then has no periodic collections
}

// heapCalls are calls of the runtime, which tests replace.
type heapCalls struct {
	sizes      func() heapSizes
	setPercent func(int) int
	setLimit   func(int64) int64
	release    func() // collects garbage and returns free memory to the system
	unmap      func() // unmaps the pages of the program
}

// boundHeap limits the memory of the heap until stop is called, unless the environment sets GOGC.
func (a *agent) boundHeap() (stop func()) {
	if slices.ContainsFunc(a.environ, func(v string) bool { return strings.HasPrefix(v, "GOGC=") }) {
		return func() {}
	}
	p := newHeapPacer(heapCalls{readHeap, debug.SetGCPercent, debug.SetMemoryLimit, debug.FreeOSMemory, func() {
		_ = unmapProgram() // it fails only without procfs; the pages then stay
	}})
	p.follow()
	return p.stop
}

func newHeapPacer(calls heapCalls) *heapPacer {
	now := time.Now()
	p := &heapPacer{heapCalls: calls, limit: calls.setLimit(-1), first: now.Add(startDelay), last: now, due: now.Add(checkInterval), starting: true,
		releases: throttle.Limit{Ratio: releaseRatio, Burst: releaseBurst, Min: leastPause, Max: time.Hour}}
	p.setPercent(startGrowth)
	p.mu.Lock() // until check can use the timer
	defer p.mu.Unlock()
	p.timer = time.AfterFunc(startDelay, p.check)
	return p
}

// stop ends all changes of the heap. It does not wait for a release, and leaves the settings, because the process is ending.
func (p *heapPacer) stop() {
	p.stopped.Store(true)
	p.timer.Stop()
}

// collected is an object without references: the next collection runs its cleanup.
type collected struct{ _ *byte }

// follow calls adjust after each collection.
func (p *heapPacer) follow() {
	runtime.AddCleanup(new(collected), func(p *heapPacer) {
		if p.adjust() {
			p.follow()
		}
	}, p)
}

// adjust sets the heap growth and the time of the next check after a collection. It returns false after stop.
func (p *heapPacer) adjust() bool {
	if p.stopped.Load() {
		return false
	}
	live, now := p.sizes().live, time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	most := heapGrowth
	if p.starting {
		most = startGrowth
	}
	p.setPercent(growth(live, p.live, now.Sub(p.last), most)) // before the limit, so that the growth is always bounded
	if p.suspended {
		p.setLimit(p.limit)
		p.suspended = false
	}
	p.last, p.live = now, live
	p.timer.Reset(min(max(releaseDelay, p.first.Sub(now)), p.due.Sub(now)))
	return true
}

// check releases memory if the heap has an excess and the pause after the last release is over. It turns off the periodic collections of an idle heap that
// is not released. One of 110 MB that allocates 2 MB in a minute is then collected every seven minutes, not every two: 0.03 % of a core, not 0.09 %. One of
// 20 MB has an excess after two minutes: 0.02 % in either case.
func (p *heapPacer) check() {
	if p.stopped.Load() {
		return
	}
	s, now := p.sizes(), time.Now()
	p.mu.Lock()
	idle, early := now.Sub(p.last), p.resumes.Sub(now)
	wait, release := checkInterval-idle%checkInterval, s.excessive() && early <= 0
	switch {
	case release:
		p.resumes, wait = now.Add(p.releases.After(time.Duration(s.live>>20)*collectTime)), checkInterval
	case s.excessive():
		wait = min(wait, early)
	}
	if !release && idle >= checkInterval && !p.suspended && p.limit == math.MaxInt64 {
		p.setLimit(s.idleLimit()) // before the percentage, so that the growth is always bounded
		p.setPercent(-1)
		p.suspended = true
	}
	if p.starting && !release { // no collection follows
		p.setPercent(growth(s.live, s.live, idle, heapGrowth))
	}
	p.starting, p.due = false, now.Add(wait)
	p.timer.Reset(wait)
	p.mu.Unlock()
	p.unmap()
	if release {
		p.release() // without the lock: adjust follows the collection
	}
}

// heapSizes describes the memory of the runtime, in bytes.
type heapSizes struct {
	live    uint64 // live objects at the last collection
	objects uint64 // objects: live, garbage, and allocated since the last collection
	free    uint64 // memory without objects that is not returned to the system
	mapped  uint64 // all memory that is not returned to the system, also outside the heap
}

// excessive reports whether the excess over the live heap is larger than leastExcess and than an eighth of the live heap. Free slots between objects are no
// excess: no release returns them.
func (s heapSizes) excessive() bool { return s.objects+s.free > s.live+max(s.live/8, leastExcess) }

// idleLimit returns the memory limit that replaces the growth of restGrowth, in bytes. Garbage is a part of the growth: otherwise a heap that keeps its garbage
// during a pause could grow by twice as much. The limit is never below the memory in use.
func (s heapSizes) idleLimit() int64 {
	garbage := max(s.objects, s.live) - s.live
	return int64(s.mapped + max(s.live*uint64(restGrowth(s.live))/100, garbage) - garbage)
}

func readHeap() heapSizes {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	value := func(i int) uint64 { return samples[i].Value.Uint64() }
	return heapSizes{live: value(0), objects: value(1), free: value(2), mapped: value(3) - value(4)}
}

// growth returns the heap growth in percent for live bytes, those of the previous collection, the time since that collection, and the maximum.
func growth(live, before uint64, after time.Duration, most int) int {
	if after > growthRest {
		return restGrowth(live)
	}
	least := uint64(leastGrowth)
	if live <= before+before/50 {
		least = steadyGrowth
	}
	return int(min(uint64(most), max(least, 100*maxHeapGrowth/max(live, 1))))
}

// restGrowth returns the growth in percent of a heap that is seldom collected.
func restGrowth(live uint64) int {
	return int(min(heapGrowth, max(steadyGrowth, 100*maxRestGrowth/max(live, 1))))
}
