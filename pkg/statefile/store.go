package statefile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	fileMode = 0o600
	dirMode  = 0o700
	// tmpPrefix is the prefix of temporary files. Names of documents never begin with a dot.
	tmpPrefix = ".tmp-"
)

// Store is one directory of documents of one kind. Methods may be called from several goroutines; two concurrent writers of the same name leave one of the
// two documents, complete.
type Store struct{ dir, kind string }

// New returns the store of a directory. It does not access the file system before [Store.Open].
func New(dir, kind string) *Store { return &Store{dir, kind} }

// Dir returns the directory of the documents.
func (s *Store) Dir() string { return s.dir }

// Open creates the directory and removes temporary files of interrupted writes. Call it once, before the first write.
func (s *Store) Open() error {
	if err := os.MkdirAll(s.dir, dirMode); err != nil {
		return fmt.Errorf("make the state directory: %w", err)
	}
	names, err := filepath.Glob(filepath.Join(escapeGlob(s.dir), tmpPrefix+"*"))
	if err != nil {
		return fmt.Errorf("list leftover files in %s: %w", s.dir, err)
	}
	for _, name := range names {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the leftover of an interrupted write: %w", err)
		}
	}
	return nil
}

// escapeGlob escapes a directory name as a glob pattern.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// Write stores v under name atomically: readers see the old document or the new one.
func (s *Store) Write(name string, v any) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("write state file %.80q: %w", name, err)
	}
	document, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write state file %s: %w", s.path(name), err)
	}
	file, err := Encode(s.kind, document)
	if err != nil {
		return fmt.Errorf("write state file %s: %w", s.path(name), err)
	}
	if len(file) > maxSize {
		return fmt.Errorf("write state file %s: it would have %d bytes, and a file of more than %d cannot be read back", s.path(name), len(file), maxSize)
	}
	if err := s.replace(name, file); err != nil {
		return fmt.Errorf("write state file %s: %w", s.path(name), err)
	}
	return nil
}

func (s *Store) replace(name string, file []byte) (err error) {
	tmp, err := os.CreateTemp(s.dir, tmpPrefix+"*") // created with mode 0600, in the target's own file system
	if errors.Is(err, fs.ErrNotExist) {             // another process removed the directory
		if err = os.MkdirAll(s.dir, dirMode); err == nil {
			tmp, err = os.CreateTemp(s.dir, tmpPrefix+"*")
		}
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(tmp.Name())
		}
	}()
	if _, err = tmp.Write(file); err != nil {
		_ = tmp.Close()
		return err
	}
	if err = tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), s.path(name))
}

// Writable returns an error if a document cannot be written now: no space, no inode, a read-only file system. Its test file has no name, so other processes
// do not see it. A missing directory is no error: [Store.Write] creates it.
func (s *Store) Writable() error {
	file, err := os.OpenFile(s.dir, os.O_WRONLY|unix.O_TMPFILE, fileMode)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if err == nil {
		_, err = file.Write(make([]byte, os.Getpagesize()))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("try to write a state file: %w", err)
	}
	return nil
}

// Remove removes a document; a missing document is no error.
func (s *Store) Remove(name string) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("remove state file %.80q: %w", name, err)
	}
	if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove state file: %w", err)
	}
	return nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// checkName rejects names outside the directory and names of the store's temporary files in it.
func checkName(name string) error {
	if name == "" || name == badDir || name[0] == '.' || strings.ContainsAny(name, "/\x00") {
		return errors.New("not a name for a document")
	}
	return nil
}
