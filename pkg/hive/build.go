package hive

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	upstream "github.com/cilium/hive"
	"github.com/cilium/hive/cell"
	"go.uber.org/dig"
)

// Build is [New] for programs. It converts panics of hive into errors of one line, which name the constructor or flag that exists twice, or the constructors that
// need each other.
func Build(cells ...cell.Cell) (h *upstream.Hive, err error) {
	defer func() {
		if r := recover(); r != nil {
			h, err = nil, fault(fmt.Sprint(r))
		}
	}()
	return New(cells...), nil
}

// Populate builds all objects of h. It returns the error of the failed constructor, whose text is for users, or one line that names the type without a
// constructor. It starts nothing, so a failed call has changed nothing on the node.
func Populate(h *upstream.Hive, log *slog.Logger) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fault(fmt.Sprint(r))
		}
	}()
	return explain(h.Populate(log))
}

// explain returns the error of a constructor as it is, because its text is for users: for instance the one for the value of a flag. Any other error is a mistake
// in the cells, with the text of dig, which names the functions and types.
func explain(err error) error {
	if err == nil {
		return nil
	}
	root := dig.RootCause(err)
	var fromDig dig.Error
	if !errors.As(root, &fromDig) {
		return root
	}
	return fault(err.Error())
}

// fault returns an error for a mistake in the program, which users cannot correct. The text becomes one line.
func fault(text string) error {
	return errors.New("this build of the agent is broken, report it with its version: " + strings.Join(strings.Fields(text), " "))
}
