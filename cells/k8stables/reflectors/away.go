package reflectors

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/waggle-net/waggle/pkg/tables/apiservers"
)

// servers says what is known of the API servers, and has a channel closed when that changes.
type servers func() (rows []apiservers.Server, changed <-chan struct{})

// whileAway makes a request again as long as no server answers it. What one reflector learns about the servers the others
// need not find out, each in its own time: tables of now beside tables of long ago make, for instance, identities of this
// node alone for labels that have one of the cluster.
func whileAway[T any](ctx context.Context, ask servers, request func() (T, error)) (T, error) {
	for delay := backoff().DelayFunc(); ; {
		out, err := request()
		if rows, _ := ask(); err == nil || refused(err) || wellServed(rows) {
			return out, err
		}
		if !ask.awaitReturn(ctx, delay()) {
			return out, err
		}
	}
}

// refused tells whether a server answered with an error: another request may then be the better one.
func refused(err error) bool {
	refusal := apierrors.APIStatus(nil)
	return errors.As(err, &refusal)
}

// awaitReturn waits until a server answers as it should or a time has passed, but for the first pause at least: others may
// get what we do not. It returns false when ctx has ended.
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

// wellServed tells whether the server in use answers as it should.
func wellServed(rows []apiservers.Server) bool {
	return slices.ContainsFunc(rows, func(s apiservers.Server) bool {
		return s.Active && s.Well()
	})
}
