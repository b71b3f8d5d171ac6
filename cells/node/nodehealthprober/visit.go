package nodehealthprober

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/waggle-net/waggle/pkg/tables/nodehealth"
)

const (
	// probeTimeout is the timeout of a probe. A lost SYN is retransmitted after 1 s and after 3 s.
	probeTimeout = 5 * time.Second
	// echoSpacing is the time after which another ICMP request follows if no reply has arrived.
	echoSpacing = 100 * time.Millisecond
)

// visit is one probe of a node.
type visit struct {
	target  *target
	began   time.Time
	paths   []*nodehealth.Path // probed paths, as at the start of the visit
	web     []bool             // whether the path is also probed by HTTP
	results []results          // results by path
}

// results are the outcomes of one path.
type results struct {
	icmp, http outcome
	digest     *digest // digest of the HTTP reply; nil without one
}

// do probes all paths concurrently, in the name of this node. It returns when the last probe has ended, after [probeTimeout] at most.
func (v *visit) do(ctx context.Context, net kernel, o options, self string) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	v.results = make([]results, len(v.paths))
	var running sync.WaitGroup
	for i, p := range v.paths {
		running.Go(func() {
			v.results[i].icmp = echo(ctx, net, p.Addr, o.threshold)
			v.results[i].icmp.began = v.began
		})
		if v.web[i] {
			running.Go(func() {
				latency, theirs, err := net.Hello(ctx, netip.AddrPortFrom(p.Addr, o.port), self)
				v.results[i].http, v.results[i].digest = outcome{v.began, latency, err, time.Now()}, theirs
			})
		}
	}
	running.Wait()
}

// echo sends up to n ICMP requests until a reply arrives. It returns when all requests have ended.
func echo(ctx context.Context, net kernel, to netip.Addr, n int) (last outcome) {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the other requests
	replies := make(chan outcome, n)
	for sent, failed := 1, 0; sent <= n; sent++ {
		running.Go(func() {
			latency, err := net.Echo(ctx, to)
			replies <- outcome{latency: latency, err: err, ended: time.Now()}
		})
		next := time.After(echoSpacing)
		if sent == n {
			next = nil
		}
		for waits := true; waits && failed < sent; {
			select {
			case last = <-replies:
				if last.err == nil {
					return last
				}
				failed++
			case <-next:
				waits = false
			}
		}
	}
	return last
}
