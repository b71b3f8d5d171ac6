// Package bpfprograms holds one row for each program of this build's datapath, with the result of loading it.
package bpfprograms

import (
	"strconv"

	"github.com/cilium/statedb"

	"github.com/waggle-net/waggle/pkg/indexes"
)

// Program is one program of the running agent. Programs of a previous run that are still attached have no rows.
type Program struct {
	Name       string `json:"name"`       // name of its object and hook
	Generation uint64 `json:"generation"` // of this build's datapath; 1 or more
	ID         uint32 `json:"id"`         // the kernel's number, new with each load; 0 while the generation is not loaded
	Attempts   int    `json:"attempts"`   // load attempts since the agent started
	// Error says why the generation is not loaded, with the verifier's last lines and the remedy; empty if it is loaded.
	Error string `json:"error,omitempty"`
}

// TableHeader implements statedb.TableWritable.
func (Program) TableHeader() []string {
	return []string{"Name", "Generation", "ID", "Attempts", "Error"}
}

// TableRow implements statedb.TableWritable.
func (p Program) TableRow() []string {
	problem := p.Error
	if problem == "" {
		problem = "-"
	}
	return []string{p.Name, strconv.FormatUint(p.Generation, 10), strconv.FormatUint(uint64(p.ID), 10), strconv.Itoa(p.Attempts), problem}
}

var nameIndex = indexes.Unique("name", indexes.String, func(p Program) string { return p.Name })

// NewTable makes the table "bpf-programs".
func NewTable(db *statedb.DB) (statedb.RWTable[Program], error) {
	return statedb.NewTable(db, "bpf-programs", nameIndex)
}
