package reflectors

import (
	"context"

	"github.com/waggle-net/waggle/cells/kubernetes/k8stables/tables"
	"github.com/waggle-net/waggle/pkg/tables/sources"
)

// demand runs the reflector of a store while its objects are needed. Only one goroutine may use it.
type demand struct {
	store *store
	run   func(context.Context) // runs the reflector until its context ends
	end   func()                // stops the reflector; nil while the reflector does not run
}

// start starts the reflector unless it is running.
func (d *demand) start(ctx context.Context) {
	if d.end != nil {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.run(ctx)
	}()
	d.end = func() {
		cancel()
		<-done
	}
}

// halt stops the reflector and reports whether it was running.
func (d *demand) halt() (ran bool) {
	if d.end == nil {
		return false
	}
	d.end()
	d.end = nil
	return true
}

// stop stops the reflector and deletes its rows.
func (d *demand) stop() error {
	if !d.halt() {
		return nil
	}
	return d.store.reset()
}

// reset restores the state before the first list. The reflector must not be running.
func (s *store) reset() error {
	s.apply.Lock()
	defer s.apply.Unlock()
	s.takePending()
	s.seen = 0
	txn := s.set.Write(s.table)
	defer txn.Abort()
	if err := s.replace(txn, nil); err != nil {
		return err
	}
	if err := s.set.SetSource(txn, sources.Source{Table: s.table.Name(), Producer: Producer, State: sources.Waiting, WaitingFor: sources.FirstList}); err != nil {
		return err
	}
	txn.Commit()
	s.lw.quorum.Store(false)
	s.report.reset()
	return nil
}

// reset clears all errors.
func (r *report) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list, r.watch, r.write, r.synced, r.held = nil, nil, nil, false, missingRows{}
	r.count(map[string]tables.Reject{})
	r.health.OK("not followed")
}
