// Package sysctlrecord keeps what kernel settings were before the agent changed them, so that "waggle cleanup" can put them
// back.
//
// The record is one file in the state directory, written before the kernel is. It holds the first value that was found, also
// when the agent changes a setting again, and is void after a boot, because that has brought the node's own values back.
// Some settings change others (net/ipv4/ip_forward sets forwarding of every device); those are recorded with them.
package sysctlrecord

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/waggle-net/waggle/pkg/selftest"
	"github.com/waggle-net/waggle/pkg/statefile"
)

const (
	dirName      = "sysctls"
	documentName = "before.json"
	fileKind     = "sysctls-before"
)

// Dir is where the record lies.
func Dir(stateDir string) string { return filepath.Join(stateDir, dirName) }

// Kernel is where settings are. A setting that does not exist is [fs.ErrNotExist].
type Kernel interface {
	Read(name string) (string, error)
	Write(name, value string) error
	// List returns the names in a directory of settings, such as "net/ipv4/conf".
	List(dir string) ([]string, error)
}

// Change is what the agent made of one setting.
type Change struct {
	Before string `json:"before"`
	Ours   string `json:"ours"`
}

// document is what the file holds.
type document struct {
	BootID  string            `json:"bootID"`
	Changes map[string]Change `json:"changes"`
	// Targets are the values of a restoration that has begun. They are computed once: half of it changes what is read.
	Targets map[string]string `json:"targets,omitempty"`
}

// Record is the file of one state directory. Methods may be called from several goroutines.
type Record struct {
	store *statefile.Store

	mu  sync.Mutex // guards doc
	doc *document  // nil until the file was read
}

// New names the file; nothing is touched yet.
func New(stateDir string) *Record { return &Record{store: statefile.New(Dir(stateDir), fileKind)} }

// Keep makes sure that the record tells how to undo the change that is about to be made. When it fails, the change must not
// be made. Settings of devices of ours are not kept: they end with the device.
func (r *Record) Keep(k Kernel, name, value string) error {
	if ofOurDevice(name) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	doc, err := r.load()
	if err != nil {
		return fmt.Errorf("keep what sysctl %s was: %w", name, err)
	}
	next := document{BootID: doc.BootID, Changes: maps.Clone(doc.Changes)}
	for changed, to := range effects(k, name, value) {
		have, err := k.Read(changed)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("keep what sysctl %s was: %w", changed, err)
		}
		c, found := next.Changes[changed]
		if !found {
			c.Before = have
		}
		c.Ours = to
		next.Changes[changed] = c
	}
	if doc.Targets == nil && maps.Equal(doc.Changes, next.Changes) {
		return nil
	}
	if err := r.store.Write(documentName, next); err != nil {
		return fmt.Errorf("keep what sysctl %s was: %w: make room in the state directory, then it is set", name, err)
	}
	r.doc = &next
	return nil
}

// load reads the file once. One of an earlier boot is void; one that cannot be read is set aside.
func (r *Record) load() (*document, error) {
	if r.doc != nil {
		return r.doc, nil
	}
	if err := r.store.Open(); err != nil {
		return nil, err
	}
	doc, err := r.read()
	if errors.Is(err, errUnusable) {
		_, err = r.store.SetAside(documentName)
	}
	if err != nil {
		return nil, err
	}
	if doc == nil {
		boot, err := selftest.BootID()
		if err != nil {
			return nil, err
		}
		doc = &document{BootID: boot, Changes: map[string]Change{}}
	}
	r.doc = doc
	return doc, nil
}

var errUnusable = errors.New("it cannot be used")

// read returns nil when there is no record of this boot.
func (r *Record) read() (*document, error) {
	boot, err := selftest.BootID()
	if err != nil {
		return nil, err
	}
	files, err := r.store.ReadAll()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(files, func(f statefile.File) bool { return f.Name == documentName })
	if i < 0 {
		return nil, nil
	}
	doc := &document{}
	if err := errors.Join(files[i].Err, json.Unmarshal(files[i].Document, doc)); err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", filepath.Join(r.store.Dir(), documentName), errUnusable, err)
	}
	if doc.BootID != boot || doc.Changes == nil {
		return nil, nil
	}
	return doc, nil
}
