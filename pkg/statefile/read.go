package statefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	// maxSize limits the bytes of a file. A document has around a kilobyte. With all labels that the API server stores for a pod and its namespace, and their
	// prefixes, it has about 10 MB.
	maxSize = 16 << 20
	// badDir is the quarantine directory of unusable files.
	badDir = "bad"
	// maxBad limits the number of quarantined files; the oldest are deleted first.
	maxBad = 64
)

// File is one entry of the directory.
type File struct {
	Name string
	// Document is the checked contents; nil when Err is set.
	Document []byte
	// Raw is the readable content, also of a file with an error; at most 16 MB.
	Raw []byte
	// Err is nil, or wraps [ErrCorrupt], [ErrForeign] or the read error, and explains why the file is unusable.
	Err error
}

// ReadAll reads every file, in the order of names. It returns an error only if it cannot list the directory; errors of a single file are in the file's Err.
func (s *Store) ReadAll() ([]File, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list state files: %w", err)
	}
	var files []File
	for _, entry := range entries {
		if entry.Name() == badDir || strings.HasPrefix(entry.Name(), tmpPrefix) {
			continue
		}
		files = append(files, s.read(entry.Name()))
	}
	return files, nil
}

// Missing returns the names without a file.
func (s *Store) Missing(names []string) ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list state files: %w", err)
	}
	there := make(map[string]bool, len(entries))
	for _, entry := range entries {
		there[entry.Name()] = true
	}
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return there[name] }), nil
}

func (s *Store) read(name string) File {
	f := File{Name: name}
	f.Raw, f.Err = readRegular(s.path(name))
	if f.Err == nil {
		f.Document, f.Err = Decode(s.kind, f.Raw)
	}
	return f
}

// readRegular reads a regular file. It neither follows links nor blocks on a pipe.
func readRegular(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return nil, fmt.Errorf("%w: is a symbolic link", ErrForeign)
	}
	if err != nil {
		return nil, fmt.Errorf("open state file: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("stat state file: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: is not a regular file (%s)", ErrForeign, info.Mode().Type())
	}
	raw, err := io.ReadAll(io.LimitReader(file, maxSize+1))
	if err != nil {
		return raw, fmt.Errorf("read state file: %w", err)
	}
	if len(raw) > maxSize {
		return raw[:maxSize], fmt.Errorf("%w: larger than %d bytes", ErrForeign, maxSize)
	}
	return raw, nil
}

// Quarantine quarantines an entry of the directory: it moves the entry into the folder "bad" inside the directory, and returns the new path. The folder keeps a
// bounded number of entries.
func (s *Store) Quarantine(name string) (string, error) { return s.keep(name, os.Rename) }

// Preserve is [Store.Quarantine] for a file that the caller rewrites next: the file also stays in its place, so its content exists at any time.
func (s *Store) Preserve(name string) (string, error) { return s.keep(name, os.Link) }

func (s *Store) keep(name string, move func(from, to string) error) (string, error) {
	bad := s.path(badDir)
	if err := os.MkdirAll(bad, dirMode); err != nil {
		return "", fmt.Errorf("quarantine state file %s: %w", name, err)
	}
	// The name starts with the time in fixed width, so names sort by age.
	to := filepath.Join(bad, time.Now().UTC().Format("20060102T150405.000000000Z")+"-"+filepath.Base(name))
	if err := move(s.path(name), to); err != nil {
		return "", fmt.Errorf("quarantine state file: %w", err)
	}
	return to, s.forgetOldest(bad)
}

func (s *Store) forgetOldest(bad string) error {
	entries, err := os.ReadDir(bad)
	if err != nil {
		return fmt.Errorf("bound the files that were set aside: %w", err)
	}
	for len(entries) > maxBad {
		err := os.RemoveAll(filepath.Join(bad, entries[0].Name()))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("bound the files that were set aside: %w", err)
		}
		entries = entries[1:]
	}
	return nil
}
