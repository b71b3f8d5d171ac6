package endpointstate

import (
	"errors"
	"fmt"
	"iter"

	"github.com/cilium/hive/cell"
	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/tables/endpointstates"
)

// maxFailures limits the endpoints that a health report names.
const maxFailures = 3

// failures describes the endpoints with an error; nil without one.
func failures(rows iter.Seq2[*endpointstates.EndpointState, statedb.Revision]) error {
	var errs []error
	n := 0
	for row := range rows {
		if row.Error == "" {
			continue
		}
		if n++; n <= maxFailures {
			errs = append(errs, fmt.Errorf("endpoint %d (%s): %s", row.ID, row.Attachment, row.Error))
		}
	}
	if n > maxFailures {
		errs = append(errs, fmt.Errorf("and %d more", n-maxFailures))
	}
	return errors.Join(errs...)
}

// reporter returns a function that reports to health only when the error has changed, because a pass may run for each request.
func reporter(health cell.Health) func(error) {
	last := "never"
	return func(err error) {
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text == last {
			return
		}
		last = text
		if err != nil {
			health.Degraded("endpoints are in error", err)
			return
		}
		health.OK("no endpoint is in error")
	}
}
