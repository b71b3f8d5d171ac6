package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/ipam"
	"github.com/waggle-net/waggle/pkg/labels"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/k8s"
)

// Create implements [endpoint.Manager].
func (m *manager) Create(ctx context.Context, req endpoint.Request) (*endpoints.Endpoint, error) {
	if err := req.Validate(); err != nil {
		return nil, fmt.Errorf("create endpoint: %w", err)
	}
	ep := fromRequest(req)
	fail := func(err error) (*endpoints.Endpoint, error) {
		return nil, fmt.Errorf("create endpoint %s: %w", describe(ep), err)
	}
	if err := m.waitRestored(ctx); err != nil {
		return fail(err)
	}
	m.remember(ep)
	if err := m.admit(ep, req, m.learnPod(ctx, ep)); err != nil {
		return fail(err)
	}
	if !req.Wait {
		return ep, nil
	}
	if err := m.waitReady(ctx, ep); err != nil {
		return fail(errors.Join(err, m.remove(ep)))
	}
	return ep, nil
}

func fromRequest(req endpoint.Request) *endpoints.Endpoint {
	labels, _ := labels.Parse(req.Labels) // checked by Validate
	return &endpoints.Endpoint{
		ContainerID: req.ContainerID, IfName: req.IfName,
		NetnsPath: req.NetnsPath, NetnsCookie: req.NetnsCookie, NetnsInode: req.NetnsInode,
		HostIfName: req.HostIfName, HostIfIndex: req.HostIfIndex, HostMAC: req.HostMAC, PodMAC: req.PodMAC,
		IPv4: req.IPv4, IPv6: req.IPv6, IPv4Pool: req.IPv4Pool, IPv6Pool: req.IPv6Pool,
		K8sNamespace: req.K8sNamespace, K8sPodName: req.K8sPodName, K8sUID: req.K8sUID,
		Labels: labels, CreatedAt: time.Now().UTC(),
	}
}

// admit claims the addresses of ep, assigns its id, labels and ports, and stores it. On an error it undoes everything. Pod is the reply of the API server, or
// nil. Addresses are claimed and released without mu: Claim is atomic, and of two requests for the same address the one that stores its row first succeeds.
func (m *manager) admit(ep *endpoints.Endpoint, req endpoint.Request, pod *k8s.Pod) error {
	if err := m.conflict(m.db.ReadTxn(), ep); err != nil {
		return err
	}
	if err := m.addresses.Claim(claims(ep, req.IPv4UUID, req.IPv6UUID)); err != nil {
		return fmt.Errorf("claim its addresses: %w", err)
	}
	if err := m.enter(ep, pod); err != nil {
		return errors.Join(err, m.release(ep))
	}
	return nil
}

// enter stores a new endpoint whose addresses are claimed.
func (m *manager) enter(ep *endpoints.Endpoint, pod *k8s.Pod) (err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	txn := m.db.ReadTxn()
	if err := m.conflict(txn, ep); err != nil {
		return err
	}
	if ep.ID, err = m.nextID(txn); err != nil {
		return err
	}
	m.lastSerial++
	ep.Serial = m.lastSerial
	of := m.ofPod(txn, ep, pod)
	ep.Labels, ep.LabelsMissing, ep.Ports = of.labels, of.missing, of.ports
	m.recordGateways(txn, ep)
	if err := m.store(ep); err != nil {
		return errors.Join(err, m.files.Remove(fileName(ep.ID)))
	}
	return nil
}

// remember records the boot id and the directory of the pod's namespace, by which the collector later proves that the namespace is gone.
func (m *manager) remember(ep *endpoints.Endpoint) {
	ep.Boot = m.boot
	if ep.NetnsInode == 0 {
		return
	}
	if seen := m.kernel.namespace(ep.NetnsPath); seen.inode == ep.NetnsInode {
		ep.NetnsDir = seen.dir
	}
}

// recordGateways records the router addresses that the pod uses as gateways. The pod sends ARP requests and neighbor solicitations for them during its whole
// lifetime, even if the range of the node changes.
func (m *manager) recordGateways(txn statedb.ReadTxn, ep *endpoints.Endpoint) {
	for node := range m.node.All(txn) {
		if ep.IPv4.IsValid() && node.IPv4.AllocRange.Contains(ep.IPv4) {
			ep.GatewayIPv4 = node.IPv4.Router
		}
		if ep.IPv6.IsValid() && node.IPv6.AllocRange.Contains(ep.IPv6) {
			ep.GatewayIPv6 = node.IPv6.Router
		}
	}
}

// conflict returns an error if another endpoint has the attachment, the interface or an address of ep.
func (m *manager) conflict(txn statedb.ReadTxn, ep *endpoints.Endpoint) error {
	taken := func(what string, q statedb.Query[*endpoints.Endpoint]) error {
		other, _, found := m.endpoints.Get(txn, q)
		if !found {
			return nil
		}
		return fmt.Errorf("%s belongs to endpoint %d (%s): %w", what, other.ID, describe(other), endpoint.ErrExists)
	}
	if err := taken("the attachment", endpoints.ByAttachment(ep.AttachmentID())); err != nil {
		return err
	}
	if err := taken("interface "+ep.HostIfName, endpoints.ByHostInterface(ep.HostIfName)); err != nil {
		return err
	}
	for _, a := range []netip.Addr{ep.IPv4, ep.IPv6} {
		if !a.IsValid() {
			continue
		}
		if err := taken("address "+a.String(), endpoints.ByAddress(a)); err != nil {
			return err
		}
	}
	return nil
}

// claims returns the addresses of an endpoint as claims for the allocator.
func claims(ep *endpoints.Endpoint, uuid4, uuid6 string) []ipam.Claim {
	var list []ipam.Claim
	add := func(a netip.Addr, pool, uuid string) {
		if a.IsValid() {
			list = append(list, ipam.Claim{Addr: a, Pool: pool, UUID: uuid, Owner: owner(ep), Attachment: ep.AttachmentID()})
		}
	}
	add(ep.IPv4, ep.IPv4Pool, uuid4)
	add(ep.IPv6, ep.IPv6Pool, uuid6)
	return list
}

// release releases the addresses of ep. It ignores addresses that have another owner, which a restored endpoint may have.
func (m *manager) release(ep *endpoints.Endpoint) error {
	var errs []error
	for _, c := range claims(ep, "", "") {
		_, err := m.addresses.Release(c.Addr, c.Pool, c.Attachment)
		notOurs := errors.Is(err, ipam.ErrInUse) || errors.Is(err, ipam.ErrTaken) || errors.Is(err, ipam.ErrExcluded)
		if err != nil && !notOurs {
			errs = append(errs, fmt.Errorf("release address %s of endpoint %d: %w", c.Addr, ep.ID, err))
		}
	}
	return errors.Join(errs...)
}

// owner returns the name under which the allocator lists the addresses of an endpoint: the pod, or the attachment without one.
func owner(ep *endpoints.Endpoint) string {
	if pod := ep.PodName(); pod != "" {
		return pod
	}
	return ep.AttachmentID()
}

func describe(ep *endpoints.Endpoint) string {
	if pod := ep.PodName(); pod != "" {
		return ep.AttachmentID() + ", pod " + pod
	}
	return ep.AttachmentID()
}
