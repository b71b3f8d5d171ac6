package pathtest

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/waggle-net/waggle/pkg/icmpecho"
)

const (
	// echoTimeout bounds the wait for a reply.
	echoTimeout = time.Second
	// sizeTimeout bounds the wait for each reply while the largest size that passes is searched, unless the round-trip time asks for more.
	sizeTimeout = 300 * time.Millisecond
	// fetchTimeout bounds an answer by TCP. A segment that is lost is sent again, so an answer that needs longer than this was lost in parts.
	fetchTimeout = 2 * time.Second

	// slowFetch is the time of an answer by TCP, beside ten round trips, from which it was sent in parts again: TCP waits 200 ms at least for what it lost,
	// and twice as long each further time.
	slowFetch = 400 * time.Millisecond

	// leastSize is the smallest size that is told apart, in bytes: IPv6 needs it of every link (RFC 8200).
	leastSize = 1280
	// shortAnswer fits into one segment, in bytes. longAnswer needs many, of which devices make aggregates.
	shortAnswer = 1200
	longAnswer  = 16 << 10
	// controlSize is the size of the ICMP packet that is as long as a segment with a short answer, in bytes.
	controlSize = 1280
)

// visit is one test of a path.
type visit struct {
	target *target
	began  time.Time
	peer   peer // as it was when the visit began
	size   int  // largest packet that pods send to the node, in bytes
	search bool // when the largest packet is lost, find the largest one that passes
	port   uint16
	asks   []icmpecho.Request // of echo: one through the tunnel; without a tunnel one in each family
	tcp    bool               // answers by TCP are asked for
	heals  bool               // packets of pods get their checksums from the kernel, as the path has spoilt them
	past   *direct            // the test past the tunnel; nil without --routing-mode=hybrid

	results results
}

// results are what a visit has found. What was not asked is zero.
type results struct {
	echo  outcome          // of all requests, or of the first that is lost
	asked icmpecho.Request // the last request of echo
	host  outcome          // the node itself, outside the tunnel; asked when echo is lost
	sized outcome          // the largest packet
	found outcome          // of the last request of the search for the largest size
	fits  int              // largest packet that passes, in bytes; 0 when not known, or less than the smallest size

	fetched bool // an answer by TCP was asked for
	fetch   outcome
	wanted  int     // bytes asked for
	got     int     // bytes that came
	control outcome // ICMP after an answer was lost or slow
	outside outcome // the same answer from the node itself, outside the tunnel, after one was lost or slow
	healed  outcome // the same answer through the tunnel with the checksums of pods, after one was lost where the path is healed
	direct  outcome // past the tunnel
}

// outcome is the outcome of one request.
type outcome struct {
	rtt time.Duration // valid without an error
	err error
}

// local returns an error that this node causes, which says nothing about the path.
func (r results) local() error {
	for _, o := range []outcome{r.echo, r.host, r.sized, r.found, r.fetch, r.control, r.outside, r.healed} {
		if errors.Is(o.err, icmpecho.ErrLocal) {
			return o.err
		}
	}
	return nil
}

// do makes the test.
func (v *visit) do(ctx context.Context, k kernel) {
	r := &v.results
	if v.past != nil {
		var past sync.WaitGroup
		past.Go(func() { r.direct = v.past.do(ctx, k) })
		defer past.Wait()
	}
	for _, r.asked = range v.asks {
		if r.echo = echo(ctx, k, r.asked, echoTimeout); r.echo.err != nil {
			r.host = v.alive(ctx, k)
			return
		}
	}
	if len(v.asks) == 0 {
		return
	}
	r.fits = v.size
	if r.sized = v.echo(ctx, k, v.size, echoTimeout); r.sized.err != nil {
		r.fits = 0
		if v.search {
			r.fits = v.largest(ctx, k)
		}
	}
	if !v.tcp {
		return
	}
	r.fetched, r.wanted = true, longAnswer
	if r.sized.err != nil {
		r.wanted = shortAnswer // the rest comes in segments of that size
	}
	if r.got, r.fetch = fetch(ctx, k, netip.AddrPortFrom(v.peer.inner, v.port), r.wanted, byUnderlay); r.fetch.err == nil && !r.slow() {
		return
	}
	r.control = v.echo(ctx, k, min(controlSize, v.size), echoTimeout)
	if v.peer.host.IsValid() {
		_, r.outside = fetch(ctx, k, netip.AddrPortFrom(v.peer.host, v.port), r.wanted, asPods)
	}
	if !v.heals {
		return
	}
	to := netip.AddrPortFrom(v.peer.inner, v.port)
	if _, r.healed = fetch(ctx, k, to, r.wanted, asPods); r.healed.err == nil {
		r.got, r.fetch = fetch(ctx, k, to, r.wanted, byUnderlay) // what was spoilt before may pass as well by now
	}
}

// slow reports whether an answer needed so long that parts of it were lost.
func (r *results) slow() bool { return r.fetch.rtt > slowFetch+10*r.echo.rtt }

// alive asks the node itself, by ICMP and by TCP. A port that is closed is an answer too.
func (v *visit) alive(ctx context.Context, k kernel) outcome {
	if !v.peer.host.IsValid() {
		return outcome{err: errors.New("the node has no address of its own")}
	}
	var icmp, tcp outcome
	var both sync.WaitGroup
	both.Go(func() { icmp = echo(ctx, k, icmpecho.Request{To: v.peer.host}, echoTimeout) })
	both.Go(func() { _, tcp = fetch(ctx, k, netip.AddrPortFrom(v.peer.host, v.port), 0, asPods) })
	both.Wait()
	if icmp.err != nil && (tcp.err == nil || errors.Is(tcp.err, syscall.ECONNREFUSED)) {
		return outcome{rtt: tcp.rtt}
	}
	return icmp
}

// largest searches the largest packet that passes, at least leastSize, less than that of the visit. It returns 0 when none does. Each size is tried twice.
func (v *visit) largest(ctx context.Context, k kernel) int {
	timeout := max(sizeTimeout, 2*v.results.echo.rtt)
	passes := func(size int) bool {
		for range 2 {
			if v.results.found = v.echo(ctx, k, size, timeout); v.results.found.err == nil {
				return true
			}
			if errors.Is(v.results.found.err, icmpecho.ErrLocal) {
				break
			}
		}
		return false
	}
	low, high := leastSize, v.size // high is lost
	if low >= high || !passes(low) {
		return 0
	}
	for high-low > 1 && !errors.Is(v.results.found.err, icmpecho.ErrLocal) {
		if middle := (low + high) / 2; passes(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// echo asks the peer as the first request of the visit does, with another size.
func (v *visit) echo(ctx context.Context, k kernel, size int, timeout time.Duration) outcome {
	r := v.asks[0]
	r.Size = size
	return echo(ctx, k, r, timeout)
}

func echo(ctx context.Context, k kernel, r icmpecho.Request, timeout time.Duration) outcome {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	rtt, err := k.Echo(ctx, r)
	return outcome{rtt, err}
}

func fetch(ctx context.Context, k kernel, to netip.AddrPort, bytes int, by checksums) (got int, o outcome) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	began := time.Now()
	got, err := k.Fetch(ctx, to, bytes, by)
	return got, outcome{time.Since(began), err}
}
