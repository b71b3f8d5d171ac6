package nftguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// burst is the number of datagrams in a round.
const burst = 5000

// BenchmarkFromNetwork measures the cost of the rules for a packet from the network: as installed, with one FIB lookup, and without the rules that accept
// after this lookup, with the two lookups of the dropping rules. A socket with a full receive buffer receives the packets.
func BenchmarkFromNetwork(b *testing.B) {
	for i, family := range []string{"IPv4", "IPv6"} {
		b.Run(family, func(b *testing.B) {
			n := newNeighbours(b)
			to := netip.AddrPortFrom(nodeAddrs[i].Addr(), port)
			var server, client *net.UDPConn
			var listen, dial error
			n.node.Do(func() { server, listen = net.ListenUDP("udp", net.UDPAddrFromAddrPort(to)) })
			n.neighbor.Do(func() { client, dial = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)) })
			if err := errors.Join(listen, dial); err != nil {
				b.Fatal(err)
			}
			defer func() { _, _ = server.Close(), client.Close() }()
			rounds := map[string][]time.Duration{}
			for b.Loop() {
				for name, prepare := range map[string]func() error{
					"none":        Delete,
					"one-lookup":  func() error { return Install(rule) },
					"two-lookups": func() error { return errors.Join(Install(rule), deleteAccepting()) },
				} {
					n.node.Do(func() { n.check(prepare()) })
					began := time.Now()
					for range burst {
						if _, err := client.Write([]byte("?")); err != nil {
							b.Fatal(err)
						}
					}
					rounds[name] = append(rounds[name], time.Since(began)/burst)
				}
			}
			if _, err := server.Read(make([]byte, 1)); err != nil {
				b.Error(err)
			}
			typical := func(name string) time.Duration {
				slices.Sort(rounds[name])
				return rounds[name][len(rounds[name])/2]
			}
			for _, name := range []string{"one-lookup", "two-lookups"} {
				b.ReportMetric(float64((typical(name) - typical("none")).Nanoseconds()), "ns/packet-"+name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// deleteAccepting deletes the rules that accept a packet after one FIB lookup, one for each family.
func deleteAccepting() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	rules, err := installed(conn)
	if err != nil {
		return err
	}
	deleted := 0
	for _, r := range rules {
		hasFib := slices.ContainsFunc(r.Exprs, func(e expr.Any) bool { _, is := e.(*expr.Fib); return is })
		last, is := r.Exprs[len(r.Exprs)-1].(*expr.Verdict)
		if !hasFib || !is || last.Kind != expr.VerdictAccept {
			continue
		}
		if err := conn.DelRule(r); err != nil {
			return err
		}
		deleted++
	}
	if deleted != 2 {
		return fmt.Errorf("%d rules accept packets after a FIB lookup, want 2", deleted)
	}
	return conn.Flush()
}
