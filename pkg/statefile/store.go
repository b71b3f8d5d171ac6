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
	// tmpPrefix begins the names of files that are being written. Names of documents never begin with a dot.
	tmpPrefix = ".tmp-"
)

// Store is one directory of documents of one kind. Methods may be called from several goroutines; two writers of the
// same name leave one of the two documents, whole.
type Store struct{ dir, kind string }

// New names a directory; nothing is touched before [Store.Open].
func New(dir, kind string) *Store { return &Store{dir, kind} }

// Dir is the directory of the documents.
func (s *Store) Dir() string { return s.dir }

// Open makes the directory and removes what interrupted writes have left. Call it once, before the first write.
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

// escapeGlob makes a directory's name match only itself.
func escapeGlob(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// Write stores v under name: readers see the old document or the new one, never a part.
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
	if err := s.replace(name, file); err != nil {
		return fmt.Errorf("write state file %s: %w", s.path(name), err)
	}
	return nil
}

func (s *Store) replace(name string, file []byte) (err error) {
	tmp, err := os.CreateTemp(s.dir, tmpPrefix+"*") // made with mode 0600, in the target's own file system
	if errors.Is(err, fs.ErrNotExist) {             // somebody removed the directory
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

// Writable says why a document could not be written now: no space, no inode, a file system that is read-only. Nobody sees the
// file that is tried, for it has no name. A directory that is missing is no error: [Store.Write] makes it.
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

// Remove removes a document; one that is gone already is no error.
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

// checkName keeps names inside the directory and apart from our own files in it.
func checkName(name string) error {
	if name == "" || name == badDir || name[0] == '.' || strings.ContainsAny(name, "/\x00") {
		return errors.New("not a name for a document")
	}
	return nil
}
