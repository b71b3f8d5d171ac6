package k8stables

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/waggle-net/waggle/pkg/printable"
)

const (
	maxFileSize = 4 << 20
	maxFiles    = 4096
	maxTotal    = 64 << 20 // of all files together
)

var extensions = []string{".yaml", ".yml", ".json"}

// directory reads the manifests and remembers what each file held, so that an unchanged one is not parsed again.
type directory struct {
	path, nodeName string
	cache          map[string]cached // nil until the directory was seen
	missing        bool              // at the last reading
}

type cached struct {
	sum       [sha256.Size]byte
	documents []parsed
}

// read returns the documents of all files in the order of the files' names. A directory that does not exist is empty, unless it
// was there before: then somebody took it away with all that it says. Only a directory that cannot be listed is an error; a
// file that cannot be read is a rejected document.
func (d *directory) read() ([]parsed, error) {
	entries, err := os.ReadDir(d.path)
	if d.missing = errors.Is(err, fs.ErrNotExist); err != nil && (!d.missing || d.cache != nil) {
		return nil, fmt.Errorf("list manifests: %w", err)
	}
	if d.missing {
		return nil, nil
	}
	var out []parsed
	fresh := map[string]cached{}
	total := 0
	for _, entry := range entries { // sorted by name
		name := entry.Name()
		if strings.HasPrefix(name, ".") || !slices.Contains(extensions, filepath.Ext(name)) {
			continue
		}
		if len(fresh) >= maxFiles {
			out = append(out, whole(name, fmt.Errorf("more than %d files: this one and later ones are not read", maxFiles)))
			break
		}
		data, err := readFile(filepath.Join(d.path, name))
		if errors.Is(err, fs.ErrNotExist) && entry.Type()&fs.ModeSymlink == 0 {
			continue // deleted since it was listed
		}
		if total += len(data); err == nil && total > maxTotal {
			err = fmt.Errorf("all manifests together are larger than %d bytes", maxTotal)
		}
		if err != nil {
			out = append(out, whole(name, err))
			continue
		}
		c := d.parse(name, data)
		fresh[name] = c
		out = append(out, c.documents...)
	}
	d.cache = fresh
	return out, nil
}

func (d *directory) parse(name string, data []byte) cached {
	sum := sha256.Sum256(data)
	if old, ok := d.cache[name]; ok && old.sum == sum {
		return old
	}
	return cached{sum, parse(name, d.nodeName, data)}
}

// whole rejects a file as a whole.
func whole(name string, err error) parsed {
	return parsed{manifest: manifest{File: printable.Short(name, maxReason), Status: rejected, Reason: printable.Short(err.Error(), maxReason)}}
}

// readFile reads a regular file of bounded size; links are followed, as ConfigMap mounts are made of them. It does not
// wait for the other end of a pipe.
func readFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("no regular file (%s)", info.Mode().Type())
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFileSize {
		return nil, fmt.Errorf("larger than %d bytes", maxFileSize)
	}
	return data, nil
}
