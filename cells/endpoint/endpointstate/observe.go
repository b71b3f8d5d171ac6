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

// observation is the state of one endpoint's rows in the tables of the datapath.
type observation struct {
	progress progress
	identity uint32 // identity in the kernel, or the desired one
	why      string // the reason why it has no identity of the cluster for a long time; empty without one
	revision uint32 // revision of its policy
	err      string // error of the first failed row, with the row's name
	waiting  string // the first missing or pending row
}

// settled reports whether a row is in the kernel. A row that is being refreshed is.
func settled(found bool, status reconciler.Status) bool {
	return found && (status.Kind == reconciler.StatusKindDone || status.Kind == reconciler.StatusKindRefreshing)
}

// add records a row that is not settled.
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

// observe checks the rows in the order in which they are written. A row of a previous endpoint with the same id counts as missing.
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

// observePolicy returns the endpoint's policy in the policy maps, and records whether it includes the endpoint's desired identity.
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

// observeIdentity checks the ipcache entry of an address. The programs need it to identify the endpoint's packets that come through the node's stack; without
// it the endpoint would be unknown there.
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

// observeLink checks the programs on the pod's link. Their row is added only when the shared programs are loaded, so while it is missing, errors of the shared
// programs are errors of the endpoint.
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

// statusOf returns the status of a row, or the zero status if it was not found.
func statusOf(row interface{ GetStatus() reconciler.Status }, found bool) reconciler.Status {
	if !found {
		return reconciler.Status{}
	}
	return row.GetStatus()
}

// holds reports whether a row of the datapath that is indexed by the endpoint's id is left.
func (c *controller) holds(txn statedb.ReadTxn, id uint16) bool {
	if _, _, found := c.Facts.Get(txn, bpfendpoints.FactsByID(id)); found {
		return true
	}
	_, _, found := c.Attachments.Get(txn, attachments.ByEndpoint(id))
	return found
}

// lingering returns the ids with other rows of the datapath. It reads all rows, so callers check [controller.holds] first.
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
