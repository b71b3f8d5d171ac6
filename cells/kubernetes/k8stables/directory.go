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
	maxTotal    = 64 << 20 // total size of all files, in bytes
)

var extensions = []string{".yaml", ".yml", ".json"}

// directory reads the manifests. It caches the documents of each file, so that an unchanged file is not parsed again.
type directory struct {
	path, nodeName string
	cache          map[string]cached // by file name; nil until the directory has been listed
	missing        bool              // the directory did not exist at the last reading
}

type cached struct {
	sum       [sha256.Size]byte
	documents []parsed
}

// read returns the documents of all files, sorted by file name. A directory that never existed counts as empty. A directory that existed and was
// removed, or that cannot be listed, is an error. A file that cannot be read is a rejected document.
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

// whole returns the rejected document of a file that cannot be read at all.
func whole(name string, err error) parsed {
	return parsed{manifest: manifest{File: printable.Short(name, maxReason), Status: rejected, Reason: printable.Short(err.Error(), maxReason)}}
}

// readFile reads a regular file of at most maxFileSize bytes. It follows links, because ConfigMap mounts consist of them. It does not wait for the
// writer of a pipe.
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
		return nil, fmt.Errorf("not a regular file (%s)", info.Mode().Type())
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
