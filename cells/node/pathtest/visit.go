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
	// echoTimeout is the timeout of a reply.
	echoTimeout = time.Second
	// sizeTimeout is the minimum timeout of each reply in the search for the largest size. The timeout is at least two round-trip times.
	sizeTimeout = 300 * time.Millisecond
	// fetchTimeout is the timeout of a reply by TCP. TCP retransmits lost segments, so a reply that takes longer has lost segments.
	fetchTimeout = 2 * time.Second

	// slowFetch, plus ten round-trip times, is the duration from which a reply by TCP contained retransmissions: TCP waits at least 200 ms before the first
	// retransmission, and twice as long before each further one.
	slowFetch = 400 * time.Millisecond

	// leastSize is the smallest tested size in bytes: IPv6 requires it of every link (RFC 8200).
	leastSize = 1280
	// shortReply fits into one segment, in bytes. longReply needs many segments, which devices may aggregate.
	shortReply = 1200
	longReply  = 16 << 10
	// controlSize is the size in bytes of an ICMP packet as large as a segment with a short reply.
	controlSize = 1280
)

// visit is one test of a path.
type visit struct {
	target   *target
	began    time.Time
	peer     peer // as at the start of the visit
	size     int  // largest packet that pods send to the node, in bytes
	search   bool // if the largest packet is lost, search the largest one that passes
	port     uint16
	requests []icmpecho.Request // requests of echo: one through the tunnel; without a tunnel one per family
	tcp      bool               // request replies by TCP
	heals    bool               // the kernel completes the checksums of packets of pods, because the path has corrupted them
	past     *direct            // the direct test; nil without --routing-mode=hybrid

	results results
}

// results are the results of a visit. Results of requests that were not sent are zero.
type results struct {
	echo  outcome          // of all requests, or of the first one that is lost
	asked icmpecho.Request // the last request of echo
	host  outcome          // the node itself, outside the tunnel; requested when echo is lost
	sized outcome          // the largest packet
	found outcome          // the last request of the search for the largest size
	fits  int              // largest packet that passes, in bytes; 0 when unknown or smaller than leastSize

	fetched bool // a reply by TCP was requested
	fetch   outcome
	wanted  int     // requested bytes
	got     int     // received bytes
	control outcome // ICMP after a reply by TCP was lost or slow
	outside outcome // the same reply from the node itself, outside the tunnel, after a reply was lost or slow
	healed  outcome // the same reply through the tunnel with the checksums of pods, after a reply was lost on a healed path
	direct  outcome // the direct path
}

// outcome is the result of one request.
type outcome struct {
	rtt time.Duration // valid without an error
	err error
}

// local returns an error that this node causes. Such an error says nothing about the path.
func (r results) local() error {
	for _, o := range []outcome{r.echo, r.host, r.sized, r.found, r.fetch, r.control, r.outside, r.healed} {
		if errors.Is(o.err, icmpecho.ErrLocal) {
			return o.err
		}
	}
	return nil
}

// do runs the test.
func (v *visit) do(ctx context.Context, k kernel) {
	r := &v.results
	if v.past != nil {
		var past sync.WaitGroup
		past.Go(func() { r.direct = v.past.do(ctx, k) })
		defer past.Wait()
	}
	for _, r.asked = range v.requests {
		if r.echo = echo(ctx, k, r.asked, echoTimeout); r.echo.err != nil {
			r.host = v.alive(ctx, k)
			return
		}
	}
	if len(v.requests) == 0 {
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
	r.fetched, r.wanted = true, longReply
	if r.sized.err != nil {
		r.wanted = shortReply // larger replies have segments of the lost size
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
		r.got, r.fetch = fetch(ctx, k, to, r.wanted, byUnderlay) // the device may have stopped corrupting checksums
	}
}

// slow reports whether a reply took so long that parts of it were retransmitted.
func (r *results) slow() bool { return r.fetch.rtt > slowFetch+10*r.echo.rtt }

// alive requests replies from the node itself, by ICMP and TCP. A refused connection is a reply too.
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

// largest searches the largest packet that passes, from leastSize up to less than the size of the visit. It returns 0 when none passes. Each size is tried
// twice.
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
	low, high := leastSize, v.size // high is known to be lost
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

// echo sends the first request of the visit with another size.
func (v *visit) echo(ctx context.Context, k kernel, size int, timeout time.Duration) outcome {
	r := v.requests[0]
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
