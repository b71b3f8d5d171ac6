package node_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/waggle-net/waggle/test/nodekit"
)

// No packet mark reaches a pod: neither a mark of Waggle's programs nor one of the sender.
func TestPrivilegedMark_DoesNotReachAPod(t *testing.T) {
	t.Parallel()
	node := startNode(t, nodekit.Options{})
	a, b := addPod(t, node, "a"), addPod(t, node, "b")
	if err := b.Do(countMarks); err != nil {
		t.Fatal(err)
	}
	const port = 2222
	for _, family := range families {
		received := nodekit.Listen(t, b, b.Addr(family.ipv6), port)
		for name, from := range map[string]nodekit.NetNS{"pod": a, "node": node.Host()} {
			if err := from.Do(func() error { return sendMarked(netip.AddrPortFrom(b.Addr(family.ipv6), port)) }); err != nil {
				t.Fatalf("%s from the %s: %v", family.name, name, err)
			}
			select {
			case <-received:
			case <-time.After(answerTimeout):
				t.Fatalf("%s from the %s did not arrive", family.name, name)
			}
		}
	}
	if marked, all := readMarks(t, b); marked != 0 || all < 4 {
		t.Errorf("%d of %d packets bear a mark", marked, all)
	}
}

const marksTable = "marks"

// countMarks creates a table that counts incoming packets with a mark, and all incoming packets.
func countMarks() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Name: marksTable, Family: nftables.TableFamilyINet})
	chain := conn.AddChain(&nftables.Chain{Name: "in", Table: table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: binaryutil.NativeEndian.PutUint32(0)}, &expr.Counter{}}})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
	return conn.Flush()
}

func readMarks(t *testing.T, pod *nodekit.Pod) (marked, all uint64) {
	t.Helper()
	if err := pod.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Name: marksTable, Family: nftables.TableFamilyINet}
		rules, err := conn.GetRules(table, &nftables.Chain{Name: "in", Table: table})
		if err != nil || len(rules) != 2 {
			return errors.Join(err, fmt.Errorf("%d rules", len(rules)))
		}
		for i, into := range []*uint64{&marked, &all} {
			for _, e := range rules[i].Exprs {
				if c, ok := e.(*expr.Counter); ok {
					*into = c.Packets
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return marked, all
}

// sendMarked sends a datagram whose mark resembles one of Waggle.
func sendMarked(to netip.AddrPort) error {
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var sockErr error
		err := c.Control(func(fd uintptr) { sockErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, 0x50f00) })
		return errors.Join(err, sockErr)
	}}
	conn, err := dialer.DialContext(context.Background(), "udp", to.String())
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte("waggle"))
	return errors.Join(err, conn.Close())
}
