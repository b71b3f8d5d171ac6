package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func example() Image {
	return Image{Names: []string{"a.local/b:1", "a.local/b:2"}, Entrypoint: []string{"/bin/sh"},
		Files: []File{{Path: "/bin/sh", Content: []byte("program")}, {Path: "/bin/ls", Link: "sh"}, {Path: "/a", Content: []byte("a")}}}
}

// entries reads a tar as name -> content; symbolic links are "-> target" and folders "".
func entries(t *testing.T, archive []byte) (names []string, content map[string]string) {
	t.Helper()
	content = map[string]string{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, content
		}
		if err != nil {
			t.Fatal(err)
		}
		if !header.ModTime.Equal(epoch) || header.Uid != 0 || header.Gid != 0 {
			t.Errorf("%s: time %s, owner %d:%d", header.Name, header.ModTime, header.Uid, header.Gid)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
		content[header.Name] = string(text)
		if header.Linkname != "" {
			content[header.Name] = "-> " + header.Linkname
		}
	}
}

func TestArchive_ContainsOneLayerAndMetadata(t *testing.T) {
	t.Parallel()
	archive, err := example().Archive()
	if err != nil {
		t.Fatal(err)
	}
	_, files := entries(t, archive)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &manifest); err != nil || len(manifest) != 1 || len(manifest[0].Layers) != 1 {
		t.Fatalf("manifest %s: %v", files["manifest.json"], err)
	}
	if diff := cmp.Diff(example().Names, manifest[0].RepoTags); diff != "" {
		t.Error(diff)
	}
	var config struct {
		Config struct{ Entrypoint []string }
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal([]byte(files[manifest[0].Config]), &config); err != nil {
		t.Fatal(err)
	}
	layer := files[manifest[0].Layers[0]]
	if diff := cmp.Diff([]string{"sha256:" + digest([]byte(layer))}, config.RootFS.DiffIDs); diff != "" {
		t.Error(diff)
	}
	names, content := entries(t, []byte(layer))
	if diff := cmp.Diff([]string{"a", "bin/", "bin/ls", "bin/sh", "tmp/"}, names); diff != "" {
		t.Error(diff)
	}
	if content["bin/ls"] != "-> sh" || content["bin/sh"] != "program" {
		t.Errorf("content %q", content)
	}
}

func TestArchive_IsReproducible(t *testing.T) {
	t.Parallel()
	first, err := example().Archive()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // the order of maps differs
		if again, err := example().Archive(); err != nil || !bytes.Equal(first, again) {
			t.Fatalf("the second archive differs: %v", err)
		}
	}
}

func TestArchive_RejectsDuplicatePath(t *testing.T) {
	t.Parallel()
	image := example()
	image.Files = append(image.Files, File{Path: "/bin/../a"})
	if _, err := image.Archive(); err == nil {
		t.Error("no error")
	}
}
