package endpointmanager

import (
	"context"
	"errors"
	"fmt"

	"github.com/waggle-net/waggle/pkg/deletequeue"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
)

// Delete implements [endpoint.Manager].
func (m *manager) Delete(ctx context.Context, id string) error {
	if err := m.waitRestored(ctx); err != nil {
		return fmt.Errorf("delete endpoint: %w", err)
	}
	ep, err := m.Lookup(id)
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return m.remove(ep)
}

// DeleteContainer implements [endpoint.Manager].
func (m *manager) DeleteContainer(ctx context.Context, containerID string) (int, error) {
	if err := m.waitRestored(ctx); err != nil {
		return 0, fmt.Errorf("delete the endpoints of a container: %w", err)
	}
	return m.removeContainer(containerID)
}

func (m *manager) removeContainer(containerID string) (int, error) {
	var errs []error
	n := 0
	for ep := range m.endpoints.List(m.db.ReadTxn(), endpoints.ByContainer(containerID)) {
		n++
		errs = append(errs, m.remove(ep))
	}
	return n, errors.Join(errs...)
}

// removeQueued replays one entry of the deletion queue. The entry may be late: it does not remove an endpoint that was created after the entry was written.
func (m *manager) removeQueued(e deletequeue.Entry) error {
	var errs []error
	for ep := range m.endpoints.List(m.db.ReadTxn(), endpoints.ByContainer(e.ContainerID)) {
		if e.IfName != "" && e.IfName != ep.IfName {
			continue
		}
		means, err := m.means(e, ep)
		if err == nil && means {
			err = m.remove(ep)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// means reports whether an entry applies to ep. An entry without an interface number was written by a DEL that found no link, or whose DEL has deleted the link
// since. It does not apply to an endpoint of this run whose link exists, because that endpoint was created later. An error leaves the entry in the queue.
func (m *manager) means(e deletequeue.Entry, ep *endpoints.Endpoint) (bool, error) {
	if e.NewestInterface != 0 || ep.Restored {
		return e.AppliesTo(ep.HostIfIndex), nil
	}
	all, err := m.kernel.links()
	if err != nil {
		return false, fmt.Errorf("check whether endpoint %d was created later: %w", ep.ID, err)
	}
	there, _, _ := all.find(ep)
	return !there, nil
}

// remove deletes the file and the row of ep and releases its addresses. A failure of one step does not skip the others. It does nothing when the row is gone or
// belongs to another endpoint.
//
// The file is removed first, so that the endpoint does not return after a crash between the steps. The addresses are released last, after the datapath was
// updated, and without mu.
func (m *manager) remove(ep *endpoints.Endpoint) error {
	row, err := m.erase(ep)
	if row == nil {
		return err
	}
	return errors.Join(err, m.release(row))
}

// erase deletes the file and the row. It returns the deleted row, or nil when the row does not belong to ep.
func (m *manager) erase(ep *endpoints.Endpoint) (*endpoints.Endpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, _, found := m.endpoints.Get(m.db.ReadTxn(), endpoints.ByID(ep.ID))
	if !found || !same(row, ep) {
		return nil, nil
	}
	err := m.files.Remove(fileName(row.ID))
	if err != nil {
		m.leaveFile(row.ID)
	}
	return row, errors.Join(err, m.deleteRow(row))
}

func (m *manager) deleteRow(ep *endpoints.Endpoint) error {
	txn := m.db.WriteTxn(m.endpoints)
	defer txn.Abort()
	if _, _, err := m.endpoints.Delete(txn, ep); err != nil {
		return fmt.Errorf("delete endpoint %d: %w", ep.ID, err)
	}
	txn.Commit()
	return nil
}
