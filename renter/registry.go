package renter

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpufair/gpufair/market/book"
	"github.com/gpufair/gpufair/renter/control/api"
)

// pullable are the offers whose owners pull from the registry of a run's image; all of them if the image is on this machine.
func pullable(offers []book.Found, req api.RunRequest) ([]book.Found, error) {
	name, ok := strings.CutPrefix(req.Image, FromRegistry)
	if !ok {
		return offers, nil
	}
	registry, _, ok := strings.Cut(name, "/")
	if !ok {
		return nil, refuse("image %s: want its whole name, such as %sregistry.example.com/tool:1", req.Image, FromRegistry)
	}
	fit := slices.DeleteFunc(slices.Clone(offers), func(f book.Found) bool { return !slices.Contains(f.Entry.Terms.Registries, registry) })
	if len(fit) == 0 {
		return nil, &refusal{
			why:  fmt.Errorf("image %s: no owner whose offer fits pulls from %s", name, registry),
			next: fmt.Sprintf("save it and give the file: skopeo copy %s%s oci-archive:%s.tar", FromRegistry, name, nameOf(name)),
		}
	}
	return fit, nil
}

// nameOf is an image's name without its registry and tag.
func nameOf(image string) string {
	base, _, _ := strings.Cut(filepath.Base(image), "@")
	base, _, _ = strings.Cut(base, ":")
	return base
}

// pin keeps what the image's name stands for now, whatever its tag will stand for when the agent is started again.
func (p *planned) pin() {
	p.name, _, _ = strings.Cut(filepath.Base(p.req.Image), "@")
	if source := p.files.image.Source(); source != "" {
		p.req.Image = FromRegistry + source + "@sha256:" + p.files.image.Manifest().String()
	}
}

// registriesOf is where an owner pulls images from, in words.
func registriesOf(list []string) string {
	if len(list) == 0 {
		return "images are sent as files: the owner pulls from no registry"
	}
	return "images are sent as files, or pulled by the owner from " + strings.Join(list, ", ")
}
