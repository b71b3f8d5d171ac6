package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// maxFile limits one value, in bytes. Kubernetes has the same limit for a whole ConfigMap.
const maxFile = 1 << 20

// readDirectory reads one value from each file. It skips names that begin with "..", which a ConfigMap mount uses internally.
func readDirectory(dir, origin string) ([]entry, error) {
	if dir == "" {
		return nil, nil
	}
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("%s=%s: read the directory: %w", origin, dir, pathless(err))
	}
	var out []entry
	var errs []error
	for _, name := range names {
		if strings.HasPrefix(name.Name(), "..") {
			continue
		}
		path := filepath.Join(dir, name.Name())
		value, err := readFile(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", path, err))
			continue
		}
		out = append(out, entry{key: name.Name(), value: value, origin: path, source: Directory})
	}
	return out, joinCapped(errs)
}

func readFile(path string) (string, error) {
	// Check the type before opening: opening a named pipe would wait for a writer.
	info, err := os.Stat(path)
	if err != nil {
		return "", pathless(err)
	}
	if !info.Mode().IsRegular() {
		return "", errors.New("is not a regular file; a configuration directory has one file for each option")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", pathless(err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return "", pathless(err)
	}
	return parseFile(content)
}

// parseFile returns the value in a file: its text without the newlines at the end.
func parseFile(content []byte) (string, error) {
	if len(content) > maxFile {
		return "", fmt.Errorf("is larger than %d bytes", maxFile)
	}
	if !utf8.Valid(content) {
		return "", errors.New("is not UTF-8 text")
	}
	value := strings.TrimRight(string(content), "\r\n")
	if strings.ContainsRune(value, 0) {
		return "", errors.New("contains a NUL byte")
	}
	return value, nil
}

// pathless removes the path from an error of package os. The caller adds the path.
func pathless(err error) error {
	var pathError *fs.PathError
	if errors.As(err, &pathError) {
		return pathError.Err
	}
	return err
}
