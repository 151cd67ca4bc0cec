"""From images to bags: bag generators, patch encoders and folders of images."""

from mipl.data.images.folder import (
    ImageBag,
    Summary,
    generate,
    image_bags,
    list_images,
    match_images,
    read_image,
    read_inside,
)
from mipl.data.images.generators import Generator, Instances
from mipl.data.images.named import GENERATORS, make_generator
from mipl.data.images.patches import PatchEncoder, efficientnet_lite0, patches, resnet34

__all__ = [
    "GENERATORS",
    "Generator",
    "ImageBag",
    "Instances",
    "PatchEncoder",
    "Summary",
    "efficientnet_lite0",
    "generate",
    "image_bags",
    "list_images",
    "make_generator",
    "match_images",
    "patches",
    "read_image",
    "read_inside",
    "resnet34",
]
