// Package deletequeue stores the DELs that the plugin accepts while the agent is unreachable, as files in a directory that
// both processes know.
//
// The plugin holds the lock shared while it calls the agent once more and writes its file. The agent holds the lock
// exclusively from before it reads the directory until its socket listens. So either the replay reads an entry, or its
// writer finds the socket; no entry is left behind. The locks belong to open files (OFD locks), so the kernel releases them
// when the process ends.
//
// An entry is a file with the content {"container-id":"...","interface-name":"...","newest-interface":7}, without the
// interface for all interfaces of the container, or in an older form "container-id:..." as plain text. Its name is the
// sha256 of the entry without newest-interface, followed by ".delete". So two deletions of one attachment leave one file.
package deletequeue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

const (
	// MaxEntries limits the queue. A further DEL fails, and the runtime repeats it later.
	MaxEntries = 256

	lockName     = "lockfile"
	suffix       = ".delete"
	badSuffix    = ".bad"    // an entry that does not parse, kept for the operator
	maxEntrySize = 4096      // bytes; a container id has at most maxContainer
	maxContainer = 1024      // bytes
	maxInterface = 15        // bytes, limit of Linux
	tempPattern  = ".entry-" // a file that is being written; the agent removes leftovers
)

// ErrFull means that the queue already holds [MaxEntries] entries.
var ErrFull = errors.New("the deletion queue is full")

// ErrNoState means that the state directory does not exist: no agent has run since the node started, or it was cleaned up.
var ErrNoState = errors.New("the state directory does not exist")

// Entry is one deletion. As JSON it is the content of a file, and a body of DELETE /endpoint.
type Entry struct {
	ContainerID string `json:"container-id"`
	IfName      string `json:"interface-name,omitempty"` // in the pod; empty means all interfaces of the container
	// NewestInterface is the highest index of a link on the node at the time of the DEL. The kernel assigns ascending indexes,
	// so an endpoint whose host end has a higher index was attached later, and the entry does not apply to it. 0 means not known.
	NewestInterface int `json:"newest-interface,omitempty"`
}

// AppliesTo reports whether the entry applies to an attachment with its names and this index of the host end. It does not apply to one that was
// made after the DEL.
func (e Entry) AppliesTo(hostIfIndex int) bool {
	return e.NewestInterface == 0 || hostIfIndex <= e.NewestInterface
}

// String returns the name of the attachment: the container id, and the interface if there is one.
func (e Entry) String() string { return strings.TrimSuffix(e.ContainerID+":"+e.IfName, ":") }

// format returns the content of an entry's file.
func format(e Entry) ([]byte, error) {
	if err := e.validate(); err != nil {
		return nil, err
	}
	return json.Marshal(e)
}

// parse reads an entry's file.
func parse(content []byte) (e Entry, err error) {
	if len(content) > maxEntrySize {
		return Entry{}, fmt.Errorf("entry has more than %d bytes", maxEntrySize)
	}
	content = bytes.TrimSpace(content)
	if id, ok := bytes.CutPrefix(content, []byte("container-id:")); ok {
		e.ContainerID = string(id)
	} else if err := json.Unmarshal(content, &e); err != nil {
		return Entry{}, fmt.Errorf("decode entry: %w", err)
	}
	if err := e.validate(); err != nil {
		return Entry{}, err
	}
	return e, nil
}

// validate checks that the names are valid in the CNI specification and in Linux.
func (e Entry) validate() error {
	if e.NewestInterface < 0 {
		return fmt.Errorf("newest-interface: %d is not an index", e.NewestInterface)
	}
	if len(e.IfName) > maxInterface || !utf8.ValidString(e.IfName) ||
		strings.ContainsFunc(e.IfName, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '/' || r == ':' }) {
		return fmt.Errorf("interface-name: %.40q is not a name of an interface", e.IfName)
	}
	return validateContainer(e.ContainerID)
}

// validateContainer checks that a container id is valid in the CNI specification and has at most maxContainer bytes.
func validateContainer(containerID string) error {
	if containerID == "" {
		return errors.New("container-id: is empty")
	}
	if len(containerID) > maxContainer {
		return fmt.Errorf("container-id: has %d bytes, more than %d", len(containerID), maxContainer)
	}
	for i, c := range []byte(containerID) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("_.-", rune(c))) {
			return fmt.Errorf("container-id: character %q at byte %d is not allowed", c, i)
		}
	}
	return nil
}

// list returns the paths of all entries in dir, sorted.
func list(dir string) ([]string, error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, f := range files {
		if f.Type().IsRegular() && strings.HasSuffix(f.Name(), suffix) {
			paths = append(paths, filepath.Join(dir, f.Name()))
		}
	}
	return paths, nil
}
