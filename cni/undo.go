package cni

import (
	"context"
	"errors"
	"time"
)

// undoTimeout bounds going back as a whole.
const undoTimeout = 20 * time.Second

// undo remembers how to go back. Its steps run in reverse.
type undo struct {
	steps []func(ctx context.Context) error
}

func (u *undo) add(step func(ctx context.Context) error) { u.steps = append(u.steps, step) }

// run goes back as far as it can. It has a context of its own, because the runtime's patience may be what has ended.
func (u *undo) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	var errs []error
	for i := len(u.steps) - 1; i >= 0; i-- {
		if err := u.steps[i](ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
