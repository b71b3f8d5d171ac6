package cni

import (
	"context"
	"errors"
	"time"
)

// undoTimeout is the timeout of the whole undo.
const undoTimeout = 20 * time.Second

// undo records the changes to undo: the endpoint first, then the link, then the addresses, which other pods may get immediately after their release.
// Concurrent steps set different fields.
type undo struct {
	endpoint, link func(ctx context.Context) error
	addresses      []func(ctx context.Context) error
}

// run undoes all changes and continues after errors. It uses a separate context, because the expiry of the runtime's context can be the reason for the undo.
func (u *undo) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	var errs []error
	for _, step := range append([]func(context.Context) error{u.endpoint, u.link}, u.addresses...) {
		if step != nil {
			errs = append(errs, step(ctx))
		}
	}
	return errors.Join(errs...)
}
