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

// blockRows are the filters of the two blocks. A pod's egress is the ingress of the host end of its link.
var blockRows = []attachments.Attachment{
	{Kind: attachments.Block, Device: "pod-links", Hook: ingress, IfIndex: int(podlink.IngressBlock), Program: bpf.PodEgress},
	{Kind: attachments.Block, Device: "pod-links", Hook: egress, IfIndex: int(podlink.EgressBlock), Program: bpf.PodIngress},
}

// sharedKinds are the kinds of rows that belong to no single endpoint.
var sharedKinds = []attachments.Kind{attachments.Hold, attachments.Block, attachments.TCX, attachments.CGroup}

// shared is the state that all endpoints have in common.
type shared struct {
	rows     []attachments.Attachment
	filtered bool // both blocks have their filter, and pod links may be attached
	complete bool // all maps are filled, so every hook may get its program
}

// shared computes the rows that belong to no single endpoint, and watches their sources. Rows of blocks require that the device that holds the blocks is
// attached.
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
		case exists: // the row has a program of a previous run, which stays attached
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
	s.filtered = s.complete // before that, the maps may lack entries of a pod
	for _, b := range blockRows {
		s.filtered = s.filtered && c.done(txn, b)
		if _, _, exists := c.Table.Get(txn, attachments.ByKey(b.Key())); exists || held {
			add(b)
		}
	}
	return s
}

// netdevs returns the rows of both hooks of each device that leads out of the node. A device with a link header of another kind than Ethernet, such as
// InfiniBand, gets none.
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

// running sets the program that the hook of a row must run. If this generation is not loaded, the row keeps no program, and the program of a previous run stays
// attached.
func running(g *generation, a attachments.Attachment) attachments.Attachment {
	if p := g.program(a.Program); p != nil {
		a.Generation, a.ProgramID = g.number, p.ID
	}
	return a
}

// desired adds the pod links of the marked endpoints to the shared rows. A new pod link must wait until the filters of the blocks and the entries of its
// endpoint have status Done. An existing row stays while its endpoint exists, whatever the later status of those rows.
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

// device returns an observed device. While a device is being renamed, two rows may have the same name; device returns the first.
func (c *controller) device(txn statedb.ReadTxn, name string) (*devices.Device, bool) {
	for d := range c.Devices.List(txn, devices.ByName(name)) {
		return d, true
	}
	return nil, false
}

// done reports whether the row with the key of a has status Done.
func (c *controller) done(txn statedb.ReadTxn, a attachments.Attachment) bool {
	row, _, found := c.Table.Get(txn, attachments.ByKey(a.Key()))
	return found && row.Status.Kind == reconciler.StatusKindDone
}

// exists reports whether the table has a row equal to a.
func (c *controller) exists(txn statedb.ReadTxn, a attachments.Attachment) bool {
	row, _, found := c.Table.Get(txn, attachments.ByKey(a.Key()))
	return found && row.Equal(&a)
}

// inMaps reports whether all entries of an endpoint that the programs need are in the maps.
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
