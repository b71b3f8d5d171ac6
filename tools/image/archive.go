package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// Image is what goes into an archive.
type Image struct {
	Names      []string // name:tag
	Entrypoint []string
	Files      []File
}

// File is a regular file, executable by all, or a symbolic link.
type File struct {
	Path    string
	Content []byte
	Link    string // not "" makes a symbolic link
}

// epoch is the time of everything inside an image.
var epoch = time.Unix(0, 0).UTC()

// Archive returns the image in the format of `docker save`: one layer, its configuration and a manifest.
func (i Image) Archive() ([]byte, error) {
	layer, err := i.layer()
	if err != nil {
		return nil, err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": epoch,
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
	})
	if err != nil {
		return nil, err
	}
	configName, layerName := digest(config)+".json", digest(layer)+".tar"
	manifest, err := json.Marshal([]map[string]any{{"Config": configName, "RepoTags": i.Names, "Layers": []string{layerName}}})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []File{{Path: configName, Content: config}, {Path: layerName, Content: layer}, {Path: "manifest.json", Content: manifest}} {
		if err := write(w, &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Mode: 0o644, Size: int64(len(f.Content))}, f.Content); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// layer is the tar of the file system: folders before what they hold, all in the order of their paths. A folder /tmp is
// always there, since programs expect it.
func (i Image) layer() ([]byte, error) {
	headers := map[string]*tar.Header{"tmp/": {Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777}}
	content := map[string][]byte{}
	for _, f := range i.Files {
		name := strings.TrimPrefix(path.Clean(f.Path), "/")
		if _, twice := headers[name]; twice {
			return nil, fmt.Errorf("/%s is given twice", name)
		}
		headers[name] = &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(f.Content))}
		if f.Link != "" {
			headers[name] = &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Mode: 0o777, Linkname: f.Link}
		}
		content[name] = f.Content
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if headers[dir+"/"] == nil {
				headers[dir+"/"] = &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}
			}
		}
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range sortedKeys(headers) {
		if err := write(w, headers[name], content[name]); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

func write(w *tar.Writer, header *tar.Header, content []byte) error {
	header.ModTime, header.Format = epoch, tar.FormatUSTAR
	if err := w.WriteHeader(header); err != nil {
		return fmt.Errorf("add %s: %w", header.Name, err)
	}
	_, err := w.Write(content)
	return err
}

func sortedKeys(m map[string]*tar.Header) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
