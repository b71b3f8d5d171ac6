package k8stables

import (
	"errors"
	"path/filepath"

	"github.com/waggle-net/waggle/pkg/kubernetes/k8sobjects"
	"github.com/waggle-net/waggle/pkg/manifests"
	"github.com/waggle-net/waggle/pkg/printable"
)

// maxReason bounds texts that quote a file, in bytes.
const maxReason = 300

// parsed is a document with its object.
type parsed struct {
	manifest
	object k8sobjects.Row // nil unless Status is used
}

// parse parses a file. It never fails: the documents carry the errors.
func parse(file, nodeName string, data []byte) []parsed {
	documents := manifests.Parse(data, filepath.Ext(file) == ".json", nodeName)
	out := make([]parsed, 0, len(documents))
	for _, d := range documents {
		m := manifest{File: file, Line: d.Line, Item: d.Item, Kind: d.Kind, Name: d.Name, Status: used}
		if d.Err != nil {
			m.Status, m.Reason = rejected, printable.Short(d.Err.Error(), maxReason)
			skip, partly := k8sobjects.NotForUs(""), k8sobjects.Partly("")
			switch {
			case errors.As(d.Err, &skip):
				m.Status = ignored
			case errors.As(d.Err, &partly):
				m.Status = used
			}
		}
		out = append(out, parsed{m, d.Row})
	}
	return out
}
