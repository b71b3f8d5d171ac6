package endpointstate

import (
	"net/netip"
	"strconv"

	"github.com/cilium/statedb"
	"github.com/cilium/statedb/reconciler"

	"github.com/waggle-net/waggle/pkg/tables/attachments"
	"github.com/waggle-net/waggle/pkg/tables/bpfendpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointpolicies"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/identities"
	"github.com/waggle-net/waggle/pkg/tables/ipcache"
)

// observation is what the tables of the datapath say about one wanted endpoint.
type observation struct {
	progress progress
	identity uint32 // as whom the kernel knows it, or shall
	why      string // what keeps it from an identity of the cluster for long; empty when nothing does
	revision uint32 // of its policy
	err      string // of the first row that failed, with the row's name
	waiting  string // the first row that is missing or pending
}

// settled tells whether a row is in the kernel, as one is that is only being refreshed.
func settled(found bool, status reconciler.Status) bool {
	return found && (status.Kind == reconciler.StatusKindDone || status.Kind == reconciler.StatusKindRefreshing)
}

// add takes a row into account that is not settled.
func (o *observation) add(row string, found bool, status reconciler.Status) {
	if !found {
		o.progress = missing
		o.wait("a row in " + row)
		return
	}
	o.progress = min(o.progress, pending)
	o.wait(row + " to be written")
	if text := status.GetError(); text != "" && o.err == "" {
		o.err = row + ": " + text
	}
}

func (o *observation) wait(what string) {
	if o.waiting == "" {
		o.waiting = what
	}
}

// observe looks at the rows in the order in which they are written. A row that still describes an earlier endpoint with
// the same id counts as missing.
func (c *controller) observe(txn statedb.ReadTxn, ep *endpoints.Endpoint) observation {
	o := observation{progress: done}
	number, found := identities.Of(txn, c.Identities, ep.ID, ep.AttachmentID())
	if found {
		o.identity, o.why = number.Identity, number.Why
	} else {
		o.progress = missing
		o.wait("an identity")
	}
	policy := c.observePolicy(txn, ep, number, found, &o)
	facts, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(ep.ID))
	if found {
		found = int(facts.IfIndex) == ep.HostIfIndex && facts.IPv4 == ep.IPv4 && facts.IPv6 == ep.IPv6 && policy != nil &&
			facts.Identity == policy.Identity && facts.Ingress == policy.Ingress && facts.Egress == policy.Egress &&
			facts.PolicyRevision == policy.Revision
	}
	if status := statusOf(facts, found); !settled(found, status) {
		o.add("endpoint-facts", found, status)
	}
	link, _, found := c.Links.Get(txn, bpfendpoints.LinkByIfIndex(uint32(ep.HostIfIndex)))
	found = found && link.ID == ep.ID
	if status := statusOf(link, found); !settled(found, status) {
		o.add("bpf-links of "+ep.HostIfName, found, status)
	}
	c.observeAddress(txn, ep, ep.IPv4, &o)
	c.observeAddress(txn, ep, ep.IPv6, &o)
	c.observeIdentity(txn, ep.IPv4, policy, &o)
	c.observeIdentity(txn, ep.IPv6, policy, &o)
	c.observeLink(txn, ep, &o)
	return o
}

// observePolicy looks for what the maps of policies hold for the endpoint, under the identity that it shall have.
func (c *controller) observePolicy(txn statedb.ReadTxn, ep *endpoints.Endpoint, number *identities.EndpointIdentity, identified bool, o *observation,
) *endpointpolicies.EndpointPolicy {
	policy, found := endpointpolicies.Of(txn, c.Policies, ep.ID, ep.AttachmentID())
	switch {
	case !found:
		o.add("endpoint-policies", false, reconciler.Status{})
		return nil
	case policy.Error != "":
		o.progress = min(o.progress, pending)
		o.err = "endpoint-policies: " + policy.Error
	case identified && policy.Identity != number.Identity:
		o.progress = min(o.progress, pending)
		o.wait("every policy to know identity " + strconv.FormatUint(uint64(number.Identity), 10))
	}
	o.revision = policy.Revision
	return policy
}

func (c *controller) observeAddress(txn statedb.ReadTxn, ep *endpoints.Endpoint, a netip.Addr, o *observation) {
	if !a.IsValid() {
		return
	}
	row, _, found := c.Addresses.Get(txn, bpfendpoints.AddressByAddr(a))
	found = found && row.ID == ep.ID
	if status := statusOf(row, found); !settled(found, status) {
		o.add("bpf-endpoints of "+a.String(), found, status)
	}
}

// observeIdentity looks for what tells whose packets those are that come through the node's stack. Without it the endpoint would be a
// stranger there.
func (c *controller) observeIdentity(txn statedb.ReadTxn, a netip.Addr, policy *endpointpolicies.EndpointPolicy, o *observation) {
	if !a.IsValid() || policy == nil {
		return
	}
	row, _, found := c.Ipcache.Get(txn, ipcache.ByPrefix(netip.PrefixFrom(a, a.BitLen())))
	found = found && row.Owner() == ipcache.OwnerEndpoints && row.Identity == policy.Identity
	if status := statusOf(row, found); !settled(found, status) {
		o.add("ipcache of "+a.String(), found, status)
	}
}

// observeLink looks for the programs on the pod's link. That row comes only when the shared programs are loaded, so
// while it is missing their errors are the endpoint's.
func (c *controller) observeLink(txn statedb.ReadTxn, ep *endpoints.Endpoint, o *observation) {
	for row := range c.Attachments.List(txn, attachments.ByEndpoint(ep.ID)) {
		if row.Kind != attachments.PodLink || row.IfIndex != ep.HostIfIndex {
			continue
		}
		if !settled(true, row.Status) {
			o.add("attachments of "+ep.HostIfName, true, row.Status)
		}
		return
	}
	o.add("attachments of "+ep.HostIfName, false, reconciler.Status{})
	if o.err != "" {
		return
	}
	for _, kind := range []attachments.Kind{attachments.Hold, attachments.Block} {
		for row := range c.Attachments.Prefix(txn, attachments.ByKey(string(kind)+"/")) {
			if text := row.Status.GetError(); text != "" {
				o.err = "attachments of " + row.Key() + ": " + text
				return
			}
		}
	}
}

// statusOf reads the status of a row that was found.
func statusOf(row interface{ GetStatus() reconciler.Status }, found bool) reconciler.Status {
	if !found {
		return reconciler.Status{}
	}
	return row.GetStatus()
}

// holds tells whether a row of the datapath that can be looked up by the endpoint's id is left.
func (c *controller) holds(txn statedb.ReadTxn, id uint16) bool {
	if _, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(id)); found {
		return true
	}
	_, _, found := c.Attachments.Get(txn, attachments.ByEndpoint(id))
	return found
}

// lingering collects the ids of which another row of the datapath is left: all are looked at, so ask [controller.holds]
// first.
func (c *controller) lingering(txn statedb.ReadTxn) map[uint16]bool {
	ids := map[uint16]bool{}
	for row := range c.Links.All(txn) {
		ids[row.ID] = true
	}
	for row := range c.Addresses.All(txn) {
		ids[row.ID] = true
	}
	return ids
}
