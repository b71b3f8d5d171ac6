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

// removeQueued does what an entry of the deletion queue asks for. An entry may be late: an endpoint that was made after it
// stays.
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

// means tells whether an entry is about ep. One that has no number was written when the attachment's link was gone, or its DEL
// has deleted the link since: an endpoint of this run whose link is there was made later. An error leaves the entry in
// the queue.
func (m *manager) means(e deletequeue.Entry, ep *endpoints.Endpoint) (bool, error) {
	if e.NewestInterface != 0 || ep.Restored {
		return e.Means(ep.HostIfIndex), nil
	}
	all, err := m.kernel.links()
	if err != nil {
		return false, fmt.Errorf("tell whether endpoint %d was made later: %w", ep.ID, err)
	}
	there, _, _ := all.of(ep)
	return !there, nil
}

// remove deletes the file and the row of ep and gives its addresses back, all of them whatever fails. It does nothing
// when the row is gone or belongs to another endpoint by now.
//
// The file goes first: after a crash in between nothing is left that would bring the endpoint back. The addresses go
// last, when the datapath has been told, and without our lock.
func (m *manager) remove(ep *endpoints.Endpoint) error {
	row, err := m.erase(ep)
	if row == nil {
		return err
	}
	return errors.Join(err, m.release(row))
}

// erase deletes the file and the row, and returns the row as it was; nil when it is not that of ep.
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
