package cniconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/waggle-net/waggle/pkg/printable"
)

// pluginType is the type of the agent's plugin in configurations.
const pluginType = "waggle-cni"

// Bounds of texts about files of other programs.
const (
	maxNamed      = 5  // types in one text
	maxTypeLength = 40 // bytes of one type
)

// presentList is a CNI configuration list on disk.
type presentList struct {
	Name    string            `json:"name"`
	Plugins []json.RawMessage `json:"plugins"`
}

// merge returns the wanted list, followed by the plugins that other programs added to the present list of the same name, such as istio-cni in its chained
// mode. added are the types of these plugins. The agent's own entries in the present list, of this or another configuration, have no effect.
func merge(present, wanted []byte) (merged []byte, added []string, err error) {
	var have presentList
	var want list
	if err := json.Unmarshal(wanted, &want); err != nil {
		return nil, nil, fmt.Errorf("decode the agent's CNI configuration: %w", err)
	}
	if json.Unmarshal(present, &have) != nil || have.Name != want.Name {
		return wanted, nil, nil
	}
	for _, entry := range have.Plugins {
		if kind := typeOf(entry); kind != "" && kind != pluginType && !isPortmap(entry) {
			added, want.Plugins = append(added, kind), append(want.Plugins, entry)
		}
	}
	if len(added) == 0 {
		return wanted, nil, nil
	}
	merged, err = want.encode()
	return merged, added, err
}

// typeOf returns the type of a plugin's entry, or "" if the entry has none.
func typeOf(entry json.RawMessage) string {
	var p struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(entry, &p) != nil {
		return ""
	}
	return p.Type
}

// isPortmap reports whether an entry is the one that --cni-chaining-mode=portmap adds.
func isPortmap(entry json.RawMessage) bool {
	own, err := json.Marshal(newPortmap())
	return err == nil && sameJSON(entry, own)
}

// sameJSON reports whether two texts are equal, or are JSON with equal contents. Programs that add a plugin to a list reorder its fields.
func sameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

// describe names the plugins of a file that another program has changed.
func describe(data []byte) string {
	var l presentList
	if json.Unmarshal(data, &l) != nil || len(l.Plugins) == 0 {
		return "it is not a CNI configuration list"
	}
	var types []string
	for _, entry := range l.Plugins {
		types = append(types, typeOf(entry))
	}
	return "its plugins are " + join(types)
}

// join joins types or names of files. The text is bounded and printable.
func join(types []string) string {
	short := make([]string, len(types))
	for i, t := range types {
		short[i] = printable.Short(t, maxTypeLength)
	}
	return printable.List(short, maxNamed)
}
