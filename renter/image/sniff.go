package image

import (
	"bytes"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"unicode/utf8"
)

// sniffed is how many bytes tell what a file is: a block of a tar.
const sniffed = 512

var (
	gzipMagic = []byte("\x1f\x8b")
	zstdMagic = []byte("\x28\xb5\x2f\xfd")
)

// sniff says what a file is that is neither a tar nor a gzip.
func sniff(head []byte) string {
	for _, m := range []struct{ magic, what string }{
		{"\x89PNG\r\n", "a PNG picture"},
		{"\xff\xd8\xff", "a JPEG picture"},
		{"GIF8", "a GIF picture"},
		{"%PDF-", "a PDF document"},
		{"PK\x03\x04", "a ZIP file"},
		{"7z\xbc\xaf\x27\x1c", "a 7-Zip file"},
		{"\x7fELF", "a program (ELF), and a program needs an image around it"},
		{"MZ", "a Windows program"},
		{"#!", "a script, and a script needs an image around it"},
		{"hsqs", "a squashfs file"},
		{"QFI\xfb", "a disk image of a virtual machine (qcow2)"},
		{string(zstdMagic), "a file compressed by zstd: unpack it with zstd -d"},
		{"\xfd7zXZ\x00", "a file compressed by xz: unpack it with xz -d"},
		{"BZh", "a file compressed by bzip2: unpack it with bzip2 -d"},
	} {
		if bytes.HasPrefix(head, []byte(m.magic)) {
			return m.what
		}
	}
	trimmed := bytes.TrimSpace(head)
	switch {
	case len(trimmed) == 0 || len(bytes.Trim(head, "\x00")) == 0:
		return "a file of nothing but spaces or zeros"
	case bytes.HasPrefix(trimmed, []byte("FROM ")):
		return "a Dockerfile, which must be built first"
	case trimmed[0] == '{' || trimmed[0] == '[':
		return "a JSON document: give the archive or folder that it belongs to"
	case bytes.IndexByte(head, 0) < 0 && utf8.Valid(head[:max(0, len(head)-utf8.UTFMax)]):
		return "a text file"
	}
	return "neither a tar nor a folder"
}

// kindOf says what something is that is no regular file.
func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a folder"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe, which can be read only once"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}

// Missing says that nothing lies at arg, as a person typed it, and what to do if it is a place of skopeo's. Commands that make paths
// absolute call it before they do, if it is no [Reference].
func Missing(arg string) error {
	for _, transport := range []string{"oci-archive:", "docker-archive:", "oci:"} {
		if rest, ok := strings.CutPrefix(arg, transport); ok && rest != "" {
			return fmt.Errorf("%w: give the path alone, without %q", fs.ErrNotExist, transport)
		}
	}
	return fmt.Errorf("%w: nothing lies there", fs.ErrNotExist)
}

// looksLikePath says that a person meant a file, not a registry's name.
func looksLikePath(arg string) bool {
	return path.Ext(arg) == ".tar" || path.Ext(arg) == ".tgz" || path.Ext(arg) == ".gz" || strings.HasPrefix(arg, ".") ||
		strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, "~") || strings.Contains(arg, `\`)
}
