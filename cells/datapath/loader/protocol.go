package loader

import (
	"context"
	"fmt"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/datapath/pinnedmaps"
	"github.com/waggle-net/waggle/pkg/loop"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// protocolState is the protocol that programs on hooks use between each other; see bpf/lib/protocol.h.
type protocolState interface {
	// Protocol returns the protocol in use; 0 if no agent has set one.
	Protocol() (uint32, error)
	// SetProtocol sets the protocol. It returns when no packet is being processed that was written in the previous protocol.
	SetProtocol(protocol uint32) error
}

// settleProtocol sets a protocol that this generation reads, before the agent changes the nftables rules or a hook. In a downgrade the attached programs are of
// the next generation, which also knows the highest protocol of this one.
func (g *generation) settleProtocol() error {
	have, err := g.params.Kernel.State.Protocol()
	if err != nil {
		return err
	}
	want := min(max(have, bpf.ProtocolLowest), bpf.ProtocolHighest)
	if want == have {
		return nil
	}
	return g.params.Kernel.State.SetProtocol(want)
}

// registerProtocol adds the job that sets the highest protocol when every hook runs this generation.
func registerProtocol(g *generation, db *statedb.DB, table statedb.Table[*attachments.Attachment]) {
	watchdog.AddRetried(g.params.Jobs, "raise-protocol", func(ctx context.Context, health cell.Health) error {
		replaced := func(r *loop.Round) bool { r.Watch(table); return attachments.Replaced(r.Txn, table) }
		if !loop.Await(ctx, db, loop.Options{Tables: []statedb.TableMeta{table}}, replaced) {
			return nil
		}
		return g.raiseProtocol(health)
	}, firstReload, lastReload)
}

func (g *generation) raiseProtocol(health cell.Health) error {
	have, err := g.params.Kernel.State.Protocol()
	if err == nil && have != bpf.ProtocolHighest {
		err = g.params.Kernel.State.SetProtocol(bpf.ProtocolHighest)
	}
	if err != nil {
		health.Degraded("hooks use the previous protocol", err)
		return err
	}
	health.OK(fmt.Sprintf("all hooks run generation %d, protocol %d", g.number, bpf.ProtocolHighest))
	return nil
}

// stateMap implements protocolState with the map "datapath".
type stateMap struct{ maps pinnedmaps.Maps }

// Protocol implements protocolState.
func (s stateMap) Protocol() (uint32, error) {
	var state bpf.DatapathState
	m, err := s.maps.Get(bpf.MapDatapath)
	if err == nil {
		err = m.Lookup(uint32(0), &state)
	}
	if err != nil {
		return 0, fmt.Errorf("read the protocol of the datapath: %w", err)
	}
	return uint32(state.Protocol), nil
}

// SetProtocol implements protocolState.
func (s stateMap) SetProtocol(protocol uint32) error {
	m, err := s.maps.Get(bpf.MapDatapath)
	if err == nil {
		err = m.Put(uint32(0), protocol)
	}
	if err == nil {
		err = pinnedmaps.AwaitPackets()
	}
	if err != nil {
		return fmt.Errorf("set the protocol of the datapath to %d: %w", protocol, err)
	}
	return nil
}
