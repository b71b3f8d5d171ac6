package node_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Endpoints are removed from a service and keep replying. Clients that send continuously change to the remaining endpoints, and do not lose even a reply that
// is in flight when the agent removes their flow.
func (m *serviceFixture) noAnswerIsLostWhenEndpointsChange(t *testing.T, _ bool) {
	client := m.pod(t, "client")
	m.pod(t, "three", 8080)
	m.web(t, "", "one", "two")

	var wg sync.WaitGroup
	var stop atomic.Bool
	var asked atomic.Int64
	var servers [8]atomic.Value // the last server of each client
	for i := range servers {
		to := netip.AddrPortFrom(webAddrs[i%len(webAddrs)], 80)
		var conn net.Conn
		if err := client.Do(func() (err error) { conn, err = net.Dial("udp", to.String()); return err }); err != nil {
			t.Fatal(err)
		}
		servers[i].Store("")
		wg.Go(func() {
			defer func() { _ = conn.Close() }()
			for !stop.Load() {
				a, err := requestOn(conn)
				if err != nil {
					t.Errorf("client %d asks %s, after request %d of all clients, last answered by %q: %v", i, to, asked.Load(), servers[i].Load(), err)
					return
				}
				asked.Add(1)
				servers[i].Store(a.server)
				if !soaks() {
					time.Sleep(200 * time.Microsecond) // other tests need CPUs as well
				}
			}
		})
	}
	defer wg.Wait()
	defer stop.Store(true)
	steps := [][]string{{"one", "two", "three"}, {"two", "three"}, {"three", "one"}, {"one", "two"}, {"three"}, {"one"}}
	for _, step := range slices.Concat(steps, steps) {
		m.backends(t, step...)
		eventually(t, func() error {
			for i := range servers {
				if last := servers[i].Load().(string); !slices.Contains(step, last) {
					return fmt.Errorf("client %d was last answered by %q, want one of %q", i, last, step)
				}
			}
			return nil
		})
	}
	t.Attr("requests", fmt.Sprint(asked.Load()))
}
