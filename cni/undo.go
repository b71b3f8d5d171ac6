package cni

import (
	"context"
	"errors"
	"time"
)

// undoTimeout bounds going back as a whole.
const undoTimeout = 20 * time.Second

// undo remembers how to go back: the endpoint first, then the link, then the addresses, which somebody else may have from that moment on. Steps
// that run at once set different fields.
type undo struct {
	endpoint, link func(ctx context.Context) error
	addresses      []func(ctx context.Context) error
}

// run goes back as far as it can. It has a context of its own, because the runtime's patience may be what has ended.
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
