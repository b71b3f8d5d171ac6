package loader

import (
	"net/netip"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/bpf"
	"github.com/waggle-net/waggle/pkg/endpointfeed"
	"github.com/waggle-net/waggle/pkg/mac"
	"github.com/waggle-net/waggle/pkg/podlink"
	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/devices"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

const (
	ingress = "ingress"
	egress  = "egress"
	both    = "both"
)

// The filters of the two blocks. A pod's egress is the ingress of the host end of its link.
var blockRows = []attachments.Attachment{
	{Kind: attachments.Block, Device: "pod-links", Hook: ingress, IfIndex: int(podlink.IngressBlock), Program: bpf.PodEgress},
	{Kind: attachments.Block, Device: "pod-links", Hook: egress, IfIndex: int(podlink.EgressBlock), Program: bpf.PodIngress},
}

// sharedKinds are the kinds of rows that belong to no single endpoint.
var sharedKinds = []attachments.Kind{attachments.Hold, attachments.Block, attachments.TCX, attachments.CGroup}

// shared is what all endpoints have in common.
type shared struct {
	rows     []attachments.Attachment
	filtered bool // both blocks have their filter, and pods may join
	complete bool // no program is held back
}

// shared computes the rows of no single endpoint, and watches what they come from. Blocks follow the device that holds
// them.
func (c *controller) shared(txn statedb.ReadTxn, changed *statedb.WatchSet) (s shared) {
	for _, kind := range sharedKinds {
		_, more := c.Table.PrefixWatch(txn, attachments.ByKey(string(kind)+"/"))
		changed.Add(more)
	}
	for _, name := range []string{podlink.HoldDevice, podlink.HostDevice, podlink.OverlayDevice, podlink.ChecksumPeer} {
		_, more := c.Devices.ListWatch(txn, devices.ByName(name))
		changed.Add(more)
	}
	if d, found := c.device(txn, podlink.HoldDevice); found {
		s.rows = append(s.rows, attachments.Attachment{Kind: attachments.Hold, Device: d.Name, IfIndex: d.Index, Hook: both})
	}
	s.complete = attachments.Begun(txn, c.Table) || c.filled(txn, changed)
	add := func(a attachments.Attachment) {
		switch _, _, exists := c.Table.Get(txn, attachments.ByKey(a.Key())); {
		case s.complete:
			s.rows = append(s.rows, running(c.Generation, a))
		case exists: // it asks for a program of an earlier run, and goes on to
			s.rows = append(s.rows, a)
		}
	}
	if d, found := c.device(txn, podlink.HostDevice); found {
		add(attachments.Attachment{Kind: attachments.TCX, Device: d.Name, IfIndex: d.Index, Hook: egress, Program: bpf.HostEgress})
	}
	if d, found := c.device(txn, podlink.OverlayDevice); found && d.Group == podlink.OverlayGroup {
		add(attachments.Attachment{Kind: attachments.TCX, Device: d.Name, IfIndex: d.Index, Hook: ingress, Program: bpf.OverlayIngress})
	}
	if d, found := c.device(txn, podlink.ChecksumPeer); found && d.Group == podlink.OverlayGroup {
		add(attachments.Attachment{Kind: attachments.TCX, Device: d.Name, IfIndex: d.Index, Hook: ingress, Program: bpf.HostEgress})
	}
	for _, a := range c.netdevs(txn, changed) {
		add(a)
	}
	for _, a := range cgroupRows(c.SocketLB) {
		add(a)
	}
	_, loaded := c.Programs.AllWatch(txn)
	changed.Add(loaded)
	held := c.done(txn, attachments.Attachment{Kind: attachments.Hold, Device: podlink.HoldDevice, Hook: both})
	s.filtered = s.complete // a pod that joins before may be one of whom the programs' maps do not know
	for _, b := range blockRows {
		s.filtered = s.filtered && c.done(txn, b)
		if _, _, exists := c.Table.Get(txn, attachments.ByKey(b.Key())); exists || held {
			add(b)
		}
	}
	return s
}

// netdevs gives the two hooks of each device that leads out of the node. One with a link header of another kind than Ethernet, as InfiniBand, gets
// none.
func (c *controller) netdevs(txn statedb.ReadTxn, changed *statedb.WatchSet) (rows []attachments.Attachment) {
	leading, more := c.Devices.ListWatch(txn, devices.BySelected(true))
	changed.Add(more)
	for d := range leading {
		in, out := bpf.NetdevIngress, bpf.NetdevEgress
		switch {
		case d.Name == podlink.HostDevice || d.Name == podlink.OverlayDevice:
			continue
		case d.L3:
			in, out = bpf.L3DevIngress, bpf.L3DevEgress
		case d.MAC == (mac.Addr{}):
			continue
		}
		rows = append(rows,
			attachments.Attachment{Kind: attachments.TCX, Device: d.Name, IfIndex: d.Index, Hook: ingress, Program: in},
			attachments.Attachment{Kind: attachments.TCX, Device: d.Name, IfIndex: d.Index, Hook: egress, Program: out})
	}
	return rows
}

// running puts into a row which program the hook shall run. While there is none, that of an earlier run stays.
func running(g *generation, a attachments.Attachment) attachments.Attachment {
	if p := g.program(a.Program); p != nil {
		a.Generation, a.ProgramID = g.number, p.ID
	}
	return a
}

// desired adds the pod links of the marked endpoints to the shared rows. Order between rows comes from their statuses:
// pod links follow the filters of the blocks and the entries of their endpoint. A row that is there stays while its
// reason lasts, whatever becomes of the rows that it once waited for.
func (c *controller) desired(txn statedb.ReadTxn, s shared, m endpointfeed.Marks) map[string]*attachments.Attachment {
	rows := make(map[string]*attachments.Attachment)
	for _, a := range s.rows {
		rows[a.Key()] = &a
	}
	for id := range m {
		for ep := range c.Endpoints.List(txn, endpoints.ByID(id)) {
			a := attachments.Attachment{Kind: attachments.PodLink, Device: ep.HostIfName, IfIndex: ep.HostIfIndex, Hook: both,
				EndpointID: ep.ID}
			if ep.Quarantine == "" && (c.exists(txn, a) || s.filtered && c.inMaps(txn, ep)) {
				rows[a.Key()] = &a
			}
		}
	}
	return rows
}

// device finds an observed device. While a device is renamed two rows may carry one name; the first is as good.
func (c *controller) device(txn statedb.ReadTxn, name string) (*devices.Device, bool) {
	for d := range c.Devices.List(txn, devices.ByName(name)) {
		return d, true
	}
	return nil, false
}

// done tells whether a row of this key is in the kernel.
func (c *controller) done(txn statedb.ReadTxn, a attachments.Attachment) bool {
	row, _, found := c.Table.Get(txn, attachments.ByKey(a.Key()))
	return found && row.Status.Kind == reconciler.StatusKindDone
}

// exists tells whether this very row is there.
func (c *controller) exists(txn statedb.ReadTxn, a attachments.Attachment) bool {
	row, _, found := c.Table.Get(txn, attachments.ByKey(a.Key()))
	return found && row.Equal(&a)
}

// inMaps tells whether everything that the programs must know of an endpoint is in the maps.
func (c *controller) inMaps(txn statedb.ReadTxn, ep *endpoints.Endpoint) bool {
	facts, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(ep.ID))
	if !found || facts.Status.Kind != reconciler.StatusKindDone || facts.IfIndex != uint32(ep.HostIfIndex) {
		return false
	}
	link, _, found := c.Links.Get(txn, bpfendpoints.LinkByIfIndex(uint32(ep.HostIfIndex)))
	if !found || link.Status.Kind != reconciler.StatusKindDone || link.ID != ep.ID {
		return false
	}
	for _, addr := range []netip.Addr{ep.IPv4, ep.IPv6} {
		if !addr.IsValid() {
			continue
		}
		row, _, found := c.Addresses.Get(txn, bpfendpoints.AddressByAddr(addr))
		if !found || row.Status.Kind != reconciler.StatusKindDone || row.ID != ep.ID {
			return false
		}
	}
	return true
}
