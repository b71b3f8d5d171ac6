package endpointmanager

import (
	"context"
	"fmt"

	"github.com/cilium/hive/job"

	"github.com/waggle-net/waggle/pkg/drift"
	"github.com/waggle-net/waggle/pkg/tables/driftrepairs"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/watchdog"
)

// registerVerify verifies the state files periodically. Without its file, the address of an endpoint would be allocated to another pod after a restart.
func registerVerify(jobs job.Group, m *manager, watch drift.Watch) {
	watchdog.AddTimer(jobs, "verify-state-files", func(context.Context) error {
		return m.verifyFiles(watch.Repairs)
	}, watch.Interval)
}

// verifyFiles writes missing files again. It returns an error when no file can be written, because then no pod can be attached.
func (m *manager) verifyFiles(repairs driftrepairs.Writer) error {
	if err := m.files.Writable(); err != nil {
		return fmt.Errorf("no pod can be attached because state files cannot be written: %w", err)
	}
	rows := map[string]*endpoints.Endpoint{}
	var names []string
	for ep := range m.endpoints.All(m.db.ReadTxn()) {
		rows[fileName(ep.ID)] = ep
		names = append(names, fileName(ep.ID))
	}
	missing, err := m.files.Missing(names)
	if err != nil {
		return err
	}
	for _, name := range missing {
		written, err := m.rewrite(rows[name])
		if err != nil {
			return err
		}
		if written {
			repairs.Record(driftrepairs.Finding{Kind: driftrepairs.StateFile, What: name, Found: "missing"})
		}
	}
	return nil
}

// rewrite writes the file of an endpoint that still exists. It holds mu, so that it never writes the file of an endpoint that is being created or deleted.
func (m *manager) rewrite(ep *endpoints.Endpoint) (written bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	row, _, found := m.endpoints.Get(m.db.ReadTxn(), endpoints.ByID(ep.ID))
	if !found || !same(row, ep) {
		return false, nil
	}
	if missing, err := m.files.Missing([]string{fileName(row.ID)}); err != nil || len(missing) == 0 {
		return false, err
	}
	if err := m.files.Write(fileName(row.ID), row); err != nil {
		return false, fmt.Errorf("write the missing state file of endpoint %d: %w", row.ID, err)
	}
	return true, nil
}
