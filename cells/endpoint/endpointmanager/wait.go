package endpointmanager

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waggle-net/waggle/pkg/endpoint"
	"github.com/waggle-net/waggle/pkg/tables/endpoints"
	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

// readyTimeout is the timeout of one request; a healthy node needs milliseconds.
const readyTimeout = 30 * time.Second

var errTimeout = fmt.Errorf("gave up after %s", readyTimeout)

// waitReady returns when the state of ep is ready, or an error with the last error or missing condition.
func (m *manager) waitReady(ctx context.Context, ep *endpoints.Endpoint) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, errTimeout)
	defer cancel()
	for late := false; ; {
		txn := m.db.ReadTxn()
		row, _, rowChanged, wanted := m.endpoints.GetWatch(txn, endpoints.ByID(ep.ID))
		if !wanted || !same(row, ep) {
			return fmt.Errorf("deleted by another request while it was being attached: %w", endpoint.ErrNotReady)
		}
		state, _, stateChanged, known := m.states.GetWatch(txn, endpointstates.ByID(ep.ID))
		known = known && state.Attachment == ep.AttachmentID()
		if known && state.State == endpointstates.Ready {
			return nil
		}
		if late {
			return notReady(state, known, context.Cause(ctx))
		}
		select {
		case <-rowChanged:
		case <-stateChanged:
		case <-ctx.Done():
			late = true // the endpoint may have become ready at this moment: check again
		}
	}
}

func notReady(s *endpointstates.EndpointState, known bool, cause error) error {
	switch {
	case !known:
		return fmt.Errorf("%w: %w: no controller has processed the endpoint; see the module endpoint-state in the agent's health",
			endpoint.ErrNotReady, cause)
	case s.Error != "":
		return fmt.Errorf("%w: %w: %w", endpoint.ErrNotReady, cause, errors.New(s.Error))
	}
	return fmt.Errorf("%w: %w: state %s, waiting for %s", endpoint.ErrNotReady, cause, s.State, s.Waiting)
}

// same reports whether two rows describe the same endpoint. Ids are reused.
func same(a, b *endpoints.Endpoint) bool {
	return a.ID == b.ID && a.AttachmentID() == b.AttachmentID() && a.Serial == b.Serial && a.CreatedAt.Equal(b.CreatedAt)
}
