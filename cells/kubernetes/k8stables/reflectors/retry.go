package reflectors

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

// servers returns the known API servers, and a channel that closes when one of them changes.
type servers func() (rows []apiservers.Server, changed <-chan struct{})

// retryWhileUnavailable retries a request while no server answers. All reflectors share the knowledge about the servers, so none waits for its own delay after
// another one was successful: a mix of current and outdated tables would, for instance, make this node create a local identity for labels that have a
// cluster identity.
func retryWhileUnavailable[T any](ctx context.Context, ask servers, request func() (T, error)) (T, error) {
	for delay := backoff().DelayFunc(); ; {
		out, err := request()
		if rows, _ := ask(); err == nil || isStatusError(err) || wellServed(rows) {
			return out, err
		}
		if !ask.awaitReturn(ctx, delay()) {
			return out, err
		}
	}
}

// isStatusError reports whether a server answered with an error. A different request may then be successful.
func isStatusError(err error) bool {
	refusal := apierrors.APIStatus(nil)
	return errors.As(err, &refusal)
}

// awaitReturn waits until a server answers correctly or longest has passed, but at least for firstPause: a server may answer other requests correctly
// and not this one. It returns false when ctx ends.
func (ask servers) awaitReturn(ctx context.Context, longest time.Duration) bool {
	least, most := time.After(firstPause), time.After(longest)
	for {
		rows, changed := ask()
		if wellServed(rows) {
			changed, most = nil, least
		}
		select {
		case <-ctx.Done():
			return false
		case <-most:
			return true
		case <-changed:
		}
	}
}

// wellServed reports whether the active server answers correctly.
func wellServed(rows []apiservers.Server) bool {
	return slices.ContainsFunc(rows, func(s apiservers.Server) bool {
		return s.Active && s.Well()
	})
}
