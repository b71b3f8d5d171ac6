package nodecidr

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/agentconfig"
	"github.com/waggle-net/waggle/pkg/tables/cilium"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
	"github.com/waggle-net/waggle/pkg/tables/nodeaddresses"
	"github.com/waggle-net/waggle/pkg/tables/nodecidrs"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// copied is a controller that started with the copy on disk, in which the Node and the CiliumNode have the CIDR 10.1.0.0/24.
type copied struct {
	*controller
	nodes       statedb.RWTable[*k8s.Node]
	ciliumNodes statedb.RWTable[*cilium.Node]
	sources     statedb.RWTable[sources.Source]
}

func startCopied(t *testing.T, mode string, flags func(*Config)) copied {
	t.Helper()
	c, a := DefaultConfig, dualStack
	a.IPAM, a.EnableIPv6 = mode, false
	if flags != nil {
		flags(&c)
	}
	s, err := newSettings(c, a, online(t))
	db := statedb.New()
	table, err1 := nodecidrs.NewTable(db)
	nodes, err2 := k8s.NewNodeTable(db)
	ciliumNodes, err3 := cilium.NewNodeTable(db)
	states, err4 := sources.NewTable(db)
	addresses, err5 := nodeaddresses.NewTable(db)
	if err := errors.Join(err, err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	n := copied{newController(params{DB: db, Table: table, Nodes: nodes, CiliumNodes: ciliumNodes, Sources: states, Addresses: addresses,
		Settings: s, Agent: a}), nodes, ciliumNodes, states}
	n.write(t, "10.1.0.0/24", ofCopy(""))
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(func() { stop(); synctest.Wait() })
	health, _ := cell.NewSimpleHealth()
	go func() { _ = n.run(ctx, health) }()
	return n
}

// ofCopy is the state of a table with the rows of the copy on disk, which were read now. failure is the error of the last attempt to list.
func ofCopy(failure string) sources.Source {
	return sources.Source{Producer: sources.CopyOnDisk, State: sources.Snapshot, WaitingFor: sources.FirstList + failure, Since: time.Now()}
}

// write writes the Node, the CiliumNode and the state of their tables in one transaction.
func (n copied) write(t *testing.T, cidr string, state sources.Source) {
	t.Helper()
	txn := n.DB.WriteTxn(n.nodes, n.ciliumNodes, n.sources)
	defer txn.Commit()
	_, _, err1 := n.nodes.Insert(txn, &k8s.Node{Name: n.Agent.NodeName, PodCIDRs: []string{cidr}})
	_, _, err2 := n.ciliumNodes.Insert(txn, &cilium.Node{Name: n.Agent.NodeName, PodCIDRs: []string{cidr}})
	for _, state.Table = range []string{n.nodes.Name(), n.ciliumNodes.Name()} {
		if _, _, err := n.sources.Insert(txn, state); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
}

// after checks the chosen CIDR after d. The zero prefix stands for none.
func (n copied) after(t *testing.T, d time.Duration, want string) {
	t.Helper()
	time.Sleep(d)
	synctest.Wait()
	row, _, _ := n.Table.Get(n.DB.ReadTxn(), nodecidrs.Chosen("ipv4"))
	prefix := netip.Prefix{}
	if want != "" {
		prefix = netip.MustParsePrefix(want)
	}
	if row.Prefix != prefix {
		t.Errorf("the CIDR %v is chosen, want %v (%s)", row.Prefix, prefix, row.Reason)
	}
	if initialized, _ := n.Table.Initialized(n.DB.ReadTxn()); initialized != (want != "") {
		t.Errorf("the table is initialized: %v, with the CIDR %v", initialized, row.Prefix)
	}
}

// A node that left the cluster and came back with another CIDR, while its agent was stopped, allocates no address of the previous CIDR, which another node may
// have now.
func TestCopy_CIDROfTheListIsChosen(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{agentconfig.IPAMKubernetes, agentconfig.IPAMClusterPool} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				n := startCopied(t, mode, nil)
				n.after(t, listTimeout-2*settle, "")
				n.write(t, "10.2.0.0/24", sources.Source{State: sources.Synced})
				n.after(t, settle, "10.2.0.0/24")
				n.after(t, time.Hour, "10.2.0.0/24")
			})
		})
	}
}

func TestCopy_IsUsedAfterFailedAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startCopied(t, agentconfig.IPAMKubernetes, nil)
		n.write(t, "10.1.0.0/24", ofCopy(": connection refused"))
		n.after(t, retryTimeout-settle, "")
		n.after(t, 2*settle, "10.1.0.0/24")
	})
}

func TestCopy_IsUsedWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startCopied(t, agentconfig.IPAMKubernetes, nil)
		n.after(t, listTimeout-settle, "")
		n.after(t, 2*settle, "10.1.0.0/24")
	})
}

func TestCopy_FlagNeedsNoList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := startCopied(t, agentconfig.IPAMKubernetes, func(c *Config) { c.IPv4Range = "10.9.0.0/24" })
		time.Sleep(settle)
		synctest.Wait()
		if row, _, _ := n.Table.Get(n.DB.ReadTxn(), nodecidrs.Chosen("ipv4")); row.Prefix.String() != "10.9.0.0/24" {
			t.Errorf("the CIDR %v is chosen, want that of the flag", row.Prefix)
		}
	})
}
