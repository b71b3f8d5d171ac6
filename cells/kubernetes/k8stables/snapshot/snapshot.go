// Package snapshot stores the last known good copy of tables in one file: one line that describes the file, and compressed rows. A reader gets all
// rows or none.
package snapshot

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	// Version is the version of the format. Files of another version are rejected.
	Version = 1
	kind    = "k8s-snapshot"
	// Limits of the file and of its decompressed contents, in bytes.
	maxFile, maxContents = 256 << 20, 2 << 30
)

// Header describes a file. It is the first line, so that "head -1" prints it.
type Header struct {
	Waggle   string    `json:"waggle"`
	Version  int       `json:"version"`
	Node     string    `json:"node"`
	Cluster  string    `json:"cluster"` // ClusterID of package kubeapi
	Written  time.Time `json:"written"`
	Tables   []string  `json:"tables"`   // tables in the file, with or without rows
	Rows     int       `json:"rows"`     // number of rows of all tables
	Checksum string    `json:"checksum"` // over the whole file, with this field empty
}

// Row is a row of a table, as JSON.
type Row struct {
	Table string          `json:"t"`
	Row   json.RawMessage `json:"r"`
}

// Encode returns the contents of a file. It sets kind, version, number of rows and checksum of the header.
func Encode(h Header, rows iter.Seq2[string, any]) ([]byte, error) {
	var body bytes.Buffer
	zip, err := gzip.NewWriterLevel(&body, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	enc := json.NewEncoder(zip)
	enc.SetEscapeHTML(false) // keep the text of a policy byte for byte
	h.Waggle, h.Version, h.Rows, h.Checksum = kind, Version, 0, ""
	var entry struct {
		Table string `json:"t"`
		Row   any    `json:"r"`
	}
	for table, row := range rows {
		entry.Table, entry.Row = table, row
		if err := enc.Encode(&entry); err != nil { // a value would be copied to the heap
			return nil, fmt.Errorf("encode a row of %s: %w", table, err)
		}
		h.Rows++
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	if h.Checksum, err = checksum(h, body.Bytes()); err != nil {
		return nil, err
	}
	line, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	return append(append(line, '\n'), body.Bytes()...), nil
}

func checksum(h Header, body []byte) (string, error) {
	h.Checksum = ""
	line, err := json.Marshal(h)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sum.Write(line)
	sum.Write(body)
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// Decode decodes a file of this node. It returns all rows or an error with the reason.
func Decode(file []byte, node string) (Header, []Row, error) {
	line, body, found := bytes.Cut(file, []byte{'\n'})
	var h Header
	if !found || json.Unmarshal(line, &h) != nil || h.Waggle != kind {
		return Header{}, nil, errors.New("it does not begin as a copy of tables")
	}
	if h.Version != Version {
		return h, nil, fmt.Errorf("it has format %d, this agent reads %d", h.Version, Version)
	}
	// The header must encode to the same line, so that a change of the line outside of the checked fields is detected as well.
	if again, err := json.Marshal(h); err != nil || !bytes.Equal(again, line) {
		return h, nil, errors.New("its first line is damaged")
	}
	if want, err := checksum(h, body); err != nil || want != h.Checksum {
		return h, nil, errors.New("it is damaged: its checksum is wrong")
	}
	if h.Node != node {
		return h, nil, fmt.Errorf("it is of node %q, this is %s", h.Node, node)
	}
	rows, err := decodeRows(body, h.Rows)
	return h, rows, err
}

func decodeRows(body []byte, count int) ([]Row, error) {
	zip, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("uncompress it: %w", err)
	}
	dec := json.NewDecoder(io.LimitReader(zip, maxContents))
	var rows []Row
	for {
		var row Row
		err := dec.Decode(&row)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read row %d of it: %w", len(rows)+1, err)
		}
		rows = append(rows, row)
	}
	if len(rows) != count {
		return nil, fmt.Errorf("it holds %d rows instead of %d", len(rows), count)
	}
	return rows, nil
}

const (
	fileMode = 0o600
	dirMode  = 0o755 // mode of /var/lib; only the owner may read the file itself
)

// Write replaces a file atomically: a reader finds the old or the new contents, also after a loss of power. There must be only one writer.
func Write(path string, contents []byte) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), dirMode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	temporary := path + ".tmp" // an interrupted write may have left this file
	defer func() {
		if err != nil {
			_ = os.Remove(temporary)
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fileMode)
	if err != nil {
		return err
	}
	_, err = file.Write(contents)
	if err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// Read returns the contents of a file. It does not follow links. The error wraps [os.ErrNotExist] if there is no file.
func Read(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read %s: it is not a regular file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("read %s: it is larger than %d bytes", path, maxFile)
	}
	return io.ReadAll(file)
}

// Quarantine quarantines a file that cannot be used, for a later analysis: it moves the file to the returned path. Only the latest such file is kept.
func Quarantine(path string) (string, error) {
	to := path + ".bad"
	if err := os.Rename(path, to); err != nil {
		return "", fmt.Errorf("move a copy: %w", err)
	}
	return to, nil
}
