// Package deletequeue keeps the DELs that the plugin accepted while the agent was away, as files in a directory that
// both know.
//
// The plugin holds the lock shared while it looks for the agent one last time and writes its file; the agent holds it
// exclusively from before it reads the directory until its socket listens. So an entry is either read by that replay or
// its writer finds the socket: none is left lying. The locks belong to open files (OFD), so they end with their process.
//
// An entry is a file named <sha256 of its content>.delete that holds {"container-id":"..."}, or in an older form
// "container-id:..." as plain text. Writing the same entry twice leaves one file.
package deletequeue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const (
	// MaxEntries bounds the queue. A DEL beyond it fails, and the runtime repeats it later.
	MaxEntries = 256

	lockName     = "lockfile"
	suffix       = ".delete"
	badSuffix    = ".bad"    // an entry that could not be read, set aside for a person
	maxEntrySize = 4096      // bytes; a container id has at most maxContainerID
	maxContainer = 1024      // bytes
	tempPattern  = ".entry-" // a file that is being written; the agent removes leftovers
)

// ErrFull means that the queue holds [MaxEntries] entries already.
var ErrFull = errors.New("the deletion queue is full")

// entry is the body of DELETE /endpoint, which is also the format of a file.
type entry struct {
	ContainerID string `json:"container-id"`
}

// format returns the content of an entry's file.
func format(containerID string) ([]byte, error) {
	if err := validate(containerID); err != nil {
		return nil, err
	}
	return json.Marshal(entry{ContainerID: containerID})
}

// parse returns the container id of an entry's file.
func parse(content []byte) (string, error) {
	if len(content) > maxEntrySize {
		return "", fmt.Errorf("entry has more than %d bytes", maxEntrySize)
	}
	content = bytes.TrimSpace(content)
	if id, ok := bytes.CutPrefix(content, []byte("container-id:")); ok {
		return string(id), validate(string(id))
	}
	var e entry
	if err := json.Unmarshal(content, &e); err != nil {
		return "", fmt.Errorf("decode entry: %w", err)
	}
	return e.ContainerID, validate(e.ContainerID)
}

// validate accepts what the CNI specification allows as a container id, and nothing longer than a sane one.
func validate(containerID string) error {
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
